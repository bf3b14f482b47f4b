"""The update rules of the attention layers by name: sum, delta, and what users register.

    @register_update_rule("decayed_sum")
    def decayed_sum(q, k, v, beta, state):
        ...
        return out, state

makes `update_rule=decayed_sum` work wherever the name of a rule is asked for; docs/extending.md walks through it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fwp_fairseq.ops import (
    fast_weight_delta,
    fast_weight_step,
    fast_weight_sum,
    normalized_fast_weight_delta,
    normalized_fast_weight_step,
    normalized_fast_weight_sum,
)

ATTENTION_NORMALIZATIONS = ("none", "output", "both")


@dataclass(frozen=True)
class UpdateRule:
    """A rule and what its layer has to know: whether it is given a write strength, what divides its reads.

    apply(q, k, v, beta, state, attention_normalization, backend) -> (out, state after the sequence), with shapes,
    dtypes and errors as for `fwp_fairseq.ops.fast_weight_delta`; where attention is normalised the state is (W, z).
    """

    apply: Callable
    uses_beta: bool
    normalizations: tuple


_RULES: dict[str, UpdateRule] = {}


def register_update_rule(name: str, uses_beta: bool = True):
    """Makes `function(q, k, v, beta, state) -> (out, state)` the update rule `name` of every model.

    Shapes: q, k (B, H, L, d_phi), v (B, H, L, d_head), state (B, H, d_phi, d_head) in float32 or better, or None at
    the start of a text. beta (B, H, L), in (0, 1), is one more projection of the layer, or None without `uses_beta`.
    The rule must give the same for a sequence in pieces as at once, since decoding hands over one position at a time.
    Raises `ValueError` where the name is taken.
    """

    def register(function):
        def apply(q, k, v, beta, state, attention_normalization, backend):
            return function(q, k, v, beta, state)

        _add(name, UpdateRule(apply, uses_beta, ("none",)))
        return function

    return register


def find_rule(name: str, attention_normalization: str = "none") -> UpdateRule:
    """The rule of that name; `ValueError` naming the argument unless both are known and go together."""
    if name not in _RULES:
        raise ValueError(f"update_rule: got {name!r}, allowed are {', '.join(_RULES)}")
    if attention_normalization not in ATTENTION_NORMALIZATIONS:
        allowed = ", ".join(ATTENTION_NORMALIZATIONS)
        raise ValueError(f"attention_normalization: got {attention_normalization!r}, allowed are {allowed}")
    if attention_normalization not in _RULES[name].normalizations:
        allowed = ", ".join(_RULES[name].normalizations)
        raise ValueError(
            f"attention_normalization: got {attention_normalization!r}, the update rule {name} takes {allowed}"
        )
    return _RULES[name]


def _add(name, rule):
    if name in _RULES:
        raise ValueError(f"update_rule: there is a rule named {name} already, choose another name")
    _RULES[name] = rule


def _sum(q, k, v, beta, state, attention_normalization, backend):
    if _is_step(q, state):
        return _step(q, k, v, None, state, attention_normalization)
    rule = fast_weight_sum if attention_normalization == "none" else normalized_fast_weight_sum
    return rule(q, k, v, state=state, backend=backend)


def _delta(q, k, v, beta, state, attention_normalization, backend):
    if _is_step(q, state):
        return _step(q, k, v, beta, state, attention_normalization)
    if attention_normalization == "none":
        return fast_weight_delta(q, k, v, beta, state=state, backend=backend)
    return normalized_fast_weight_delta(
        q, k, v, beta, state=state, normalisation=attention_normalization, backend=backend
    )


def _is_step(q, state):
    """A single position behind a state, as in decoding."""
    return state is not None and q.shape[2] == 1


def _step(q, k, v, beta, state, attention_normalization):
    q, k, v = (x.squeeze(2) for x in (q, k, v))
    beta = None if beta is None else beta.squeeze(2)
    if attention_normalization == "none":
        out, state = fast_weight_step(state, q, k, v, beta)
    else:
        out, state = normalized_fast_weight_step(state, q, k, v, beta, attention_normalization)
    return out.unsqueeze(2), state


# The sum rule removes nothing, so that the read for removal ("both") is the delta rule's.
_add("sum", UpdateRule(_sum, uses_beta=False, normalizations=("none", "output")))
_add("delta", UpdateRule(_delta, uses_beta=True, normalizations=ATTENTION_NORMALIZATIONS))
