"""The softmax baseline: causal multi-head attention with the same bias-free projections as the fast weights."""

import torch
import torch.nn.functional as F
from torch import nn

from fwp_fairseq.modules.fast_weight_attention import check_heads


class SoftmaxAttention(nn.Module):
    """Scores times 1/sqrt(d_head), no dropout on them.

    x (B, L, d_model) -> (B, L, d_model) and the state, which grows with the text: the keys and values of all T
    positions so far, each (B, heads, T, d_head). Given as `state` to the next call it goes on from there.
    """

    def __init__(self, d_model: int, heads: int):
        super().__init__()
        self.heads, self.d_head = heads, check_heads(d_model, heads)
        self.qkv_projection = nn.Linear(d_model, 3 * d_model, bias=False)
        self.output_projection = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, state=None):
        batch, length, d_model = x.shape
        q, k, v = self.qkv_projection(x).view(batch, length, 3, self.heads, self.d_head).permute(2, 0, 3, 1, 4)
        if state is None:
            read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            k, v = self.with_earlier(state, k, v)
            earlier = k.shape[2] - length
            seen = torch.ones(length, k.shape[2], dtype=torch.bool, device=x.device).tril(earlier)
            read = F.scaled_dot_product_attention(q, k, v, attn_mask=seen if length > 1 else None)
        return self.output_projection(read.transpose(1, 2).reshape(batch, length, d_model)), (k, v)

    def with_earlier(self, state, k, v):
        expected = f"expected keys and values of shape ({k.shape[0]}, {self.heads}, T, {self.d_head}) in {k.dtype}"
        if not isinstance(state, tuple) or len(state) != 2:
            raise ValueError(f"state: {expected}, got {type(state).__name__}")
        like = (k.shape[0], self.heads, *state[0].shape[2:3], self.d_head)
        if any((x.shape, x.dtype, x.device) != (like, k.dtype, k.device) for x in state):
            got = " and ".join(f"{tuple(x.shape)} in {x.dtype} on {x.device}" for x in state)
            raise ValueError(f"state: {expected} on {k.device}, got {got}")
        return torch.cat((state[0], k), dim=2), torch.cat((state[1], v), dim=2)
