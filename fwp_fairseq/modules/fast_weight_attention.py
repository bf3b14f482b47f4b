"""Self-attention with fast weights: linear attention (sum rule) and the delta rule, named by their parts.

    attention = FastWeightAttention(d_model=256, heads=8, feature_map="elu", update_rule="delta")
    out, state = attention(x)            # (B, L, 256)
    more, state = attention(y, state)    # goes on where the first call ended
"""

import torch
from torch import nn

from fwp_fairseq.modules.feature_map import FeatureMap
from fwp_fairseq.modules.update_rules import find_rule
from fwp_fairseq.ops import read_state, sum_normalize


class FastWeightAttention(nn.Module):
    """Multi-head attention whose memory is a matrix a head, written and read at every position (section 4).

    One bias-free projection to queries, keys and values, a write strength beta a head where the delta rule needs it,
    the feature map, the rule, the factor 1/sqrt(d_head), and a bias-free output projection.

    Args:
        d_model: size of inputs and outputs; a multiple of `heads`
        feature_map, nu, m: see `FeatureMap`
        update_rule: "sum", "delta", or a registered one, see `fwp_fairseq.modules.update_rules`
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
        self.rule = find_rule(update_rule, attention_normalization)
        self.heads, self.d_head = heads, d_head
        self.sum_normalization = sum_normalization
        self.attention_normalization = attention_normalization
        self.backend = backend
        self.feature_map = FeatureMap(feature_map, d_head, nu, m)
        self.qkv_projection = nn.Linear(d_model, 3 * d_model, bias=False)
        self.beta_projection = nn.Linear(d_model, heads, bias=False) if self.rule.uses_beta else None
        self.output_projection = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, state=None, key_padding_mask=None, is_causal=True):
        """x (B, L, d_model) -> out (B, L, d_model) and the state after the last position.

        The state is W (B, heads, d_phi, d_head) in float32 (float64 for float64 inputs), or (W, z) with z
        (B, heads, d_phi) where attention is normalised; None starts from zeros.

        key_padding_mask: (B, L), True where a position is padding, as for `torch.nn.MultiheadAttention`: nothing is
        written there. is_causal=False: every position reads what the whole sequence wrote.
        """
        d_model = self.qkv_projection.in_features
        if x.dim() != 3 or x.shape[-1] != d_model:
            raise ValueError(f"x: expected shape (B, L, {d_model}), got {tuple(x.shape)}")
        batch, length = x.shape[:2]
        # (3, B, heads, L, d_head)
        qkv = self.qkv_projection(x).view(batch, length, 3, self.heads, self.d_head).permute(2, 0, 3, 1, 4)
        phi = self.feature_map(qkv[:2])
        if self.sum_normalization:
            phi = sum_normalize(phi)
        q, k, v = phi[0], phi[1], qkv[2]
        if key_padding_mask is not None:
            check_mask(key_padding_mask, batch, length)
            k = k.masked_fill(key_padding_mask[:, None, :, None], 0.0)
        beta = torch.sigmoid(self.beta_projection(x)).transpose(1, 2) if self.rule.uses_beta else None
        read, state = self.rule.apply(q, k, v, beta, state, self.attention_normalization, self.backend)
        if not is_causal:
            read = read_state(state, q)
        read = read.transpose(1, 2).reshape(batch, length, d_model)
        return self.output_projection(read * self.d_head**-0.5), state

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


def check_mask(mask, batch: int, length: int) -> None:
    """`ValueError` unless a mask of padding has a truth value for each position."""
    if mask.shape != (batch, length) or mask.dtype != torch.bool:
        raise ValueError(
            f"key_padding_mask: expected shape {(batch, length)} of torch.bool, got {tuple(mask.shape)} of {mask.dtype}"
        )
