"""The softmax baseline: causal multi-head attention with the same bias-free projections as the fast weights."""

import torch.nn.functional as F
from torch import nn

from fwp_fairseq.modules.fast_weight_attention import check_heads


class SoftmaxAttention(nn.Module):
    """Scores times 1/sqrt(d_head), no dropout on them. x (B, L, d_model) -> (B, L, d_model) and None, since
    nothing is kept of the sequence."""

    def __init__(self, d_model: int, heads: int):
        super().__init__()
        self.heads, self.d_head = heads, check_heads(d_model, heads)
        self.qkv_projection = nn.Linear(d_model, 3 * d_model, bias=False)
        self.output_projection = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        batch, length, d_model = x.shape
        q, k, v = self.qkv_projection(x).view(batch, length, 3, self.heads, self.d_head).permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output_projection(read.transpose(1, 2).reshape(batch, length, d_model)), None
