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
        expected = (k.shape[0], self.heads, "T", self.d_head)
        for tensor in state:
            if tensor.dim() != 4 or (*tensor.shape[:2], "T", tensor.shape[3]) != expected:
                raise ValueError(f"state: expected keys and values of shape {expected}, got {tuple(tensor.shape)}")
        return torch.cat((state[0], k), dim=2), torch.cat((state[1], v), dim=2)
