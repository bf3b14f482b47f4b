"""What one query reads from each sequence by the sum rule, without forming the features of the keys.

With a single query the gradient of a key is its score's factor times a vector that the forward pass has at hand, so
nothing as large as the features is kept, or even made for more than one sequence at a time: what is made stays in
the processor's cache. Keys (B, L, d) and queries (B, d) ahead of the feature map; the result, (B, L), is
`phi(k_i) . phi(q)` in float32 (float64 for float64).
"""

import math

import torch
from torch.autograd.function import once_differentiable

from fwp_fairseq.ops import dpfp_feature_map
from fwp_fairseq.ops.feature_maps import accumulation_dtype


def dpfp_scores(keys, query, nu):
    """DPFP: `phi` are the products of two components of `r = [relu(k); relu(-k)]` at distances 1 to nu."""
    with torch.autocast(keys.device.type, enabled=False):
        keys, query = (x.to(accumulation_dtype(x)) for x in (keys, query))
        return _DpfpScores.apply(keys, dpfp_feature_map(query, nu).unflatten(-1, (nu, -1)))


def favor_scores(keys, query, omega):
    """FAVOR+ without eps, for the random features `omega` (d, m)."""
    with torch.autocast(keys.device.type, enabled=False):
        keys, query = (x.to(accumulation_dtype(x)) for x in (keys, query))
        return _FavorScores.apply(keys, query, omega.to(keys.dtype))


class _DpfpScores(torch.autograd.Function):
    """keys (B, L, d), features of the query (B, nu, 2d) -> (B, L).

    A score is `sum_j,a p_ja r_a r_{a-j}`. Its derivative by `r_a` has each pair of components twice, once from either
    side; the indices wrap around, so `r` is laid out with nu components repeated at both ends, and is then shifted
    by slicing.
    """

    @staticmethod
    def forward(ctx, keys, features):
        batch, length, d = keys.shape
        nu, width = features.shape[1:]
        scores, slope = keys.new_empty(batch, length), torch.empty_like(keys)
        wrapped, total = keys.new_empty(length, width + 2 * nu), keys.new_empty(length, width)
        ahead = torch.stack([features[:, j - 1].roll(-j, -1) for j in range(1, nu + 1)], dim=1)
        for b in range(batch):
            r = _components(keys[b], nu, wrapped)
            total.zero_()
            for j in range(1, nu + 1):
                total.addcmul_(_shifted(wrapped, j, nu), features[b, j - 1])
                total.addcmul_(_shifted(wrapped, -j, nu), ahead[b, j - 1])
            torch.sum(r * total, -1, out=scores[b])
            total *= r > 0
            torch.sub(total[:, :d], total[:, d:], out=slope[b])
        scores /= 2
        ctx.save_for_backward(keys, slope)
        ctx.nu = nu
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        keys, slope = ctx.saved_tensors
        batch, length, d = keys.shape
        nu = ctx.nu
        grad_features = keys.new_empty(batch, nu, 2 * d)
        wrapped = keys.new_empty(length, 2 * d + 2 * nu)
        for b in range(batch):
            r = _components(keys[b], nu, wrapped)
            for j in range(1, nu + 1):
                torch.mv((r * _shifted(wrapped, j, nu)).T, grad[b], out=grad_features[b, j - 1])
        return slope * grad.unsqueeze(-1), grad_features


def _components(keys, nu, wrapped):
    """Writes `r` of the keys (L, d) and its nu components beyond both ends to `wrapped`; returns the view of `r`."""
    d = keys.shape[-1]
    r = wrapped[:, nu : nu + 2 * d]
    torch.clamp(keys, min=0, out=r[:, :d])
    torch.sub(r[:, :d], keys, out=r[:, d:])
    for beyond in range(nu):
        wrapped[:, beyond] = r[:, (beyond - nu) % (2 * d)]
        wrapped[:, nu + 2 * d + beyond] = r[:, beyond % (2 * d)]
    return r


def _shifted(wrapped, shift, nu):
    """`r.roll(shift)` as a view."""
    return wrapped[:, nu - shift : wrapped.shape[1] - nu - shift]


class _FavorScores(torch.autograd.Function):
    """keys (B, L, d), query (B, d), omega (d, m) -> (B, L).

    Feature `+-j` of key times that of query is `exp(+-omega_j . (k + q) - |k|^2/2 - |q|^2/2) / 2m`: the same in k and
    q, and so are the derivatives.
    """

    @staticmethod
    def forward(ctx, keys, query, omega):
        batch, length, _ = keys.shape
        m = omega.shape[1]
        smallest = math.log(2 * torch.finfo(keys.dtype).tiny)  # below it exp takes fifty times as long
        offset = (keys.square().sum(-1) + query.square().sum(-1, keepdim=True)) / 2 + math.log(2 * m)
        query_projected = query @ omega
        scores, slope = keys.new_empty(batch, length), torch.empty_like(keys)
        plus, minus = keys.new_empty(length, m), keys.new_empty(length, m)
        for b in range(batch):
            torch.addmm(query_projected[b], keys[b], omega, out=plus)
            shift = offset[b].unsqueeze(-1)
            torch.add(plus, shift, out=minus).neg_()
            plus -= shift
            for part in (plus, minus):
                part.clamp_(min=smallest).exp_()
            scores[b] = plus.sum(-1) + minus.sum(-1)
            plus -= minus
            torch.addmm(keys[b] * scores[b].unsqueeze(-1), plus, omega.T, beta=-1, out=slope[b])
        # by symmetry, the derivative by q is that by k with q for k
        ctx.save_for_backward(keys, query, scores, slope)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        keys, query, scores, slope = ctx.saved_tensors
        grad_keys = slope * grad.unsqueeze(-1)
        weighted = (grad * scores).unsqueeze(-1)
        grad_query = (grad_keys + weighted * (keys - query.unsqueeze(1))).sum(1)
        return grad_keys, grad_query, None
