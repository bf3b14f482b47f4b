"""What `fwp-bench ops` compares: our backends, and what a user would take in their place.

`contenders(names, rules, device, dtype)` finds out which of them can run here.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from fwp_fairseq.benchmarks import BenchError
from fwp_fairseq.ops import fast_weight_delta, fast_weight_sum
from fwp_fairseq.ops.triton_support import why_not_triton

# The reference keeps the states of all steps for its backward pass, several times over.
REFERENCE_NUMBERS = 2**25


class CannotRun(Exception):
    """A contender cannot run on this device, in this dtype, or without a package; the text says which."""


@dataclass(frozen=True)
class Contender:
    """One way to compute a rule: "sum", "delta", or "softmax" for attention.

    `call(q, k, v, beta)` gives `(B, H, L, Dv)`; rules without a write strength ignore beta.
    """

    rule: str
    name: str
    call: Callable

    @property
    def label(self):
        return f"{self.rule}/{self.name}"

    def inputs(self, q, k, v, beta):
        """The tensors that gradients are computed for."""
        return (q, k, v, beta) if self.rule == "delta" else (q, k, v)

    def too_large(self, shape):
        """Why it is left out at (B, H, L, Dk, Dv), or None."""
        batch, heads, length, key_dim, value_dim = shape
        if self.name == "reference" and batch * heads * length * key_dim * value_dim > REFERENCE_NUMBERS:
            return f"would keep a state for each step, more than {REFERENCE_NUMBERS:,} numbers"
        return None


def contenders(names, rules, device, dtype):
    """(contenders in a fixed order, {label: why it cannot run here}).

    names: of `ops.BACKENDS`, each of which must then be able to run; None for all that can.
    """
    found, left_out = [], {}
    for rule, name, load in AVAILABLE:
        if (names is not None and name not in names) or rule not in (*rules, "softmax"):
            continue
        try:
            found.append(Contender(rule, name, load(device, dtype)))
        except CannotRun as reason:
            left_out[f"{rule}/{name}"] = str(reason)
    if names is not None and left_out:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in left_out.items())
        raise BenchError(f"--backends: cannot run {reasons}")
    return found, left_out


def _ours(rule, backend):
    function = {"sum": fast_weight_sum, "delta": fast_weight_delta}[rule]

    def call(q, k, v, beta):
        strength = (beta,) if rule == "delta" else ()
        return function(q, k, v, *strength, backend=backend)[0]

    def load(device, dtype):
        if backend == "triton":
            tensor = torch.empty(1, 1, 1, 1, device=device, dtype=dtype)
            obstacle = why_not_triton(tensor, tensor, tensor)
            if obstacle:
                raise CannotRun(obstacle)
        return call

    return rule, backend, load


def _load_sdpa(device, dtype):
    return lambda q, k, v, beta: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _load_fla(device, dtype):
    """The chunked delta rule in plain torch of flash-linear-attention."""
    chunkwise = _import("fla.ops.delta_rule.naive", "delta_rule_chunkwise", "fla-core")
    if dtype != torch.float32:
        raise CannotRun("computes in float32 only")

    def call(q, k, v, beta):
        # It multiplies the queries by 1/sqrt(Dk), ours leave that to the layer.
        return chunkwise(q, k, v, beta)[0] * q.shape[-1] ** 0.5

    return call


def _load_fast_transformers(device, dtype):
    """The causal linear attention of Katharopoulos et al. (2020), without its normalisation: the sum rule."""
    product = _import("fast_transformers.causal_product", "causal_dot_product", "pytorch-fast-transformers")
    if dtype != torch.float32:
        raise CannotRun("computes in float32 only")
    return lambda q, k, v, beta: product(q, k, v)


def _import(module, name, distribution):
    """A function of an optional package."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise CannotRun(f"the package {distribution} is not installed, or another version than expected ({error})")


AVAILABLE = (
    ("softmax", "sdpa", _load_sdpa),
    _ours("delta", "torch"),
    _ours("delta", "triton"),
    _ours("delta", "reference"),
    ("delta", "fla", _load_fla),
    _ours("sum", "torch"),
    _ours("sum", "triton"),
    _ours("sum", "reference"),
    ("sum", "fast-transformers", _load_fast_transformers),
)
