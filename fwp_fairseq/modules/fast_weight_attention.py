"""Causal self-attention with fast weights: linear attention (sum rule) and the delta rule, named by their parts.

    attention = FastWeightAttention(d_model=256, heads=8, feature_map="elu", update_rule="delta")
    out, state = attention(x)            # (B, L, 256)
    more, state = attention(y, state)    # goes on where the first call ended
"""

import torch
from torch import nn

from fwp_fairseq.modules.feature_map import FeatureMap
from fwp_fairseq.ops import (
    fast_weight_delta,
    fast_weight_step,
    fast_weight_sum,
    normalized_fast_weight_delta,
    normalized_fast_weight_step,
    normalized_fast_weight_sum,
    sum_normalize,
)

UPDATE_RULES = ("sum", "delta")
ATTENTION_NORMALIZATIONS = ("none", "output", "both")


class FastWeightAttention(nn.Module):
    """Multi-head attention whose memory is a matrix a head, written and read at every position (section 4).

    One bias-free projection to queries, keys and values, a write strength beta a head where the delta rule needs it,
    the feature map, the rule, the factor 1/sqrt(d_head), and a bias-free output projection.

    Args:
        d_model: size of inputs and outputs; a multiple of `heads`
        feature_map, nu, m: see `FeatureMap`
        update_rule: "sum" or "delta"
        sum_normalization: divide phi(k) and phi(q) by the sum of their components (the delta rule needs it)
        attention_normalization: "none", "output" (divide each read by z . phi(q), z the sum of all keys), or, for the
            delta rule, "both" (the read for removal too)
        backend: of the fast weight rules, see `fwp_fairseq.ops.fast_weight_sum`

    Raises `ValueError` that names the argument.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        feature_map: str = "elu",
        update_rule: str = "delta",
        sum_normalization: bool = True,
        attention_normalization: str = "none",
        nu: int | None = None,
        m: int | None = None,
        backend: str = "auto",
    ):
        super().__init__()
        d_head = check_heads(d_model, heads)
        check_rule(update_rule, attention_normalization)
        self.heads, self.d_head = heads, d_head
        self.update_rule = update_rule
        self.sum_normalization = sum_normalization
        self.attention_normalization = attention_normalization
        self.backend = backend
        self.feature_map = FeatureMap(feature_map, d_head, nu, m)
        self.qkv_projection = nn.Linear(d_model, 3 * d_model, bias=False)
        self.beta_projection = nn.Linear(d_model, heads, bias=False) if update_rule == "delta" else None
        self.output_projection = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, state=None):
        """x (B, L, d_model) -> out (B, L, d_model) and the state after the last position.

        The state is W (B, heads, d_phi, d_head) in float32 (float64 for float64 inputs), or (W, z) with z
        (B, heads, d_phi) where attention is normalised; None starts from zeros.
        """
        batch, length, d_model = x.shape
        # (3, B, heads, L, d_head)
        qkv = self.qkv_projection(x).view(batch, length, 3, self.heads, self.d_head).permute(2, 0, 3, 1, 4)
        phi = self.feature_map(qkv[:2])
        if self.sum_normalization:
            phi = sum_normalize(phi)
        read, state = self.update(phi[0], phi[1], qkv[2], x, state)
        read = read.transpose(1, 2).reshape(batch, length, d_model)
        return self.output_projection(read * self.d_head**-0.5), state

    def update(self, q, k, v, x, state):
        beta = torch.sigmoid(self.beta_projection(x)).transpose(1, 2) if self.update_rule == "delta" else None
        return apply_rule(q, k, v, beta, state, self.attention_normalization, self.backend)

    @property
    def state_size(self) -> int:
        """Numbers in the state of one sequence."""
        columns = self.d_head + (self.attention_normalization != "none")
        return self.heads * self.feature_map.d_phi * columns


def check_heads(d_model: int, heads: int) -> int:
    """d_head; `ValueError` unless `heads` divides `d_model`."""
    if heads < 1 or d_model < 1 or d_model % heads:
        raise ValueError(f"d_model: must be a multiple of heads, got d_model={d_model} with heads={heads}")
    return d_model // heads


def check_rule(update_rule: str, attention_normalization: str) -> None:
    """`ValueError` naming the argument unless the two are known and go together."""
    if update_rule not in UPDATE_RULES:
        raise ValueError(f"update_rule: got {update_rule!r}, allowed are {', '.join(UPDATE_RULES)}")
    if attention_normalization not in ATTENTION_NORMALIZATIONS:
        allowed = ", ".join(ATTENTION_NORMALIZATIONS)
        raise ValueError(f"attention_normalization: got {attention_normalization!r}, allowed are {allowed}")
    if attention_normalization == "both" and update_rule == "sum":
        raise ValueError("attention_normalization: the sum rule removes nothing, so 'both' is for the delta rule")


def apply_rule(q, k, v, beta, state, attention_normalization: str, backend: str):
    """The delta rule, or with beta None the sum rule, over a sequence: (out, state after it).

    Shapes, dtypes and errors as for `fwp_fairseq.ops.fast_weight_delta`; where attention is normalised the state is
    the pair (W, z). A single position behind a state, as in decoding, takes the step of the rule, whatever the backend.
    """
    if state is not None and q.shape[2] == 1:
        return apply_step(q, k, v, beta, state, attention_normalization)
    if beta is None:
        rule = fast_weight_sum if attention_normalization == "none" else normalized_fast_weight_sum
        return rule(q, k, v, state=state, backend=backend)
    if attention_normalization == "none":
        return fast_weight_delta(q, k, v, beta, state=state, backend=backend)
    return normalized_fast_weight_delta(
        q, k, v, beta, state=state, normalisation=attention_normalization, backend=backend
    )


def apply_step(q, k, v, beta, state, attention_normalization: str):
    q, k, v = (x.squeeze(2) for x in (q, k, v))
    beta = None if beta is None else beta.squeeze(2)
    if attention_normalization == "none":
        out, state = fast_weight_step(state, q, k, v, beta)
    else:
        out, state = normalized_fast_weight_step(state, q, k, v, beta, attention_normalization)
    return out.unsqueeze(2), state
