"""Transformer-XL's attention (Dai et al. 2019, section 3): relative positions, and a memory of the segments before.

    attention = RelativeAttention(d_model=256, heads=8)
    segment = Segment(sinusoidal_positions(384, 256), visible_keys(384, 0), u, v, mem_len=384)
    out, memory = attention(x, x[:, :0], segment)  # x (B, 384, 256), nothing remembered yet
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fwp_fairseq.modules.fast_weight_attention import check_heads


@dataclass(frozen=True)
class Segment:
    """What the layers share while they read L positions behind a memory of M.

    sinusoids: (M + L, d_model), `sinusoidal_positions` of the distances M + L - 1 down to 0
    visible: (L, M + L) boolean, the keys that each query sees, of `visible_keys`
    r_w_bias, r_r_bias: (heads, d_head), u and v of the paper's equation: what every query adds to meet keys' contents
        and keys' distances
    mem_len: positions to remember for the next segment
    """

    sinusoids: torch.Tensor
    visible: torch.Tensor
    r_w_bias: torch.Tensor
    r_r_bias: torch.Tensor
    mem_len: int


class RelativeAttention(nn.Module):
    """Causal multi-head attention over memory and segment; the projections have no biases.

    With R the sinusoids, the score of the key at j for the query at i is, times 1/sqrt(d_head),
    `(q_i + u) . k_j + (q_i + v) . W_R R_{i-j}`.

    Raises `ValueError` unless `heads` divides `d_model`.
    """

    def __init__(self, d_model: int, heads: int):
        super().__init__()
        self.heads, self.d_head = heads, check_heads(d_model, heads)
        self.q_projection = nn.Linear(d_model, d_model, bias=False)
        self.kv_projection = nn.Linear(d_model, 2 * d_model, bias=False)
        self.r_projection = nn.Linear(d_model, d_model, bias=False)
        self.output_projection = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, memory, segment: Segment):
        """x (B, L, d_model), memory (B, M, d_model) -> out (B, L, d_model) and the memory for the next segment: the
        last `mem_len` inputs, (B, min(M + L, mem_len), d_model), detached. No gradient reaches `memory`."""
        batch, length, d_model = x.shape
        context = torch.cat((memory.detach(), x), dim=1)
        q = self.split_heads(self.q_projection(x))
        k, v = (self.split_heads(part) for part in self.kv_projection(context).chunk(2, dim=-1))
        r = self.split_heads(self.r_projection(segment.sinusoids)[None])
        by_distance = (q + segment.r_r_bias[:, None]) @ r.transpose(-2, -1)
        by_distance = relative_shift(by_distance) * self.d_head**-0.5
        read = F.scaled_dot_product_attention(
            q + segment.r_w_bias[:, None], k, v, attn_mask=by_distance.masked_fill(~segment.visible, -torch.inf)
        )
        out = self.output_projection(read.transpose(1, 2).reshape(batch, length, d_model))
        # cloned, since a view would keep all of the context alive and in checkpoints
        return out, context[:, max(context.shape[1] - segment.mem_len, 0) :].detach().clone()

    def split_heads(self, x):
        return x.unflatten(-1, (self.heads, self.d_head)).transpose(1, 2)


def relative_shift(scores):
    """Columns that count distances down, K - 1 to 0, become columns of keys: (..., L, K) -> (..., L, K).

    Entry (i, j) of the result is entry (i, L - 1 - i + j): row i moves left by L - 1 - i (appendix B). What comes to
    stand where j lies after the query is meaningless.
    """
    length, keys = scores.shape[-2:]
    # one more column in front of each row, and the rows written one behind the other: each begins one entry later
    return F.pad(scores, (1, 0)).flatten(-2)[..., length:].unflatten(-1, (length, keys))


def visible_keys(length, memory_length, window=None, device=None):
    """(length, memory_length + length) boolean: keys at or before the query, of these only the last `window`."""
    query = torch.arange(memory_length, memory_length + length, device=device)
    distance = query[:, None] - torch.arange(memory_length + length, device=device)
    visible = distance >= 0
    return visible if window is None else visible & (distance < window)
