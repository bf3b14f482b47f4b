"""What one query reads from each sequence by the sum rule, without forming the features of the keys.

With a single query the gradient of a key is its score's factor times a vector that the forward pass has at hand, so
nothing as large as the features is kept, or even made for more sequences at a time than fit in the processor's
cache. Keys (B, L, d) and queries (B, d) ahead of the feature map; the result, (B, L), is
`phi(k_i) . phi(q)` in float32 (float64 for float64).
"""

import math

import torch
from torch.autograd.function import once_differentiable

from fwp_fairseq.ops.feature_maps import accumulation_dtype

CACHED = 320_000  # numbers of a temporary that stay in a core's cache: the fastest of 1e4 to 2e6


def dpfp_scores(keys, query, nu):
    """DPFP: `phi` are the products of two components of `r = [relu(k); relu(-k)]` at distances 1 to nu."""
    with torch.autocast(keys.device.type, enabled=False):
        keys, query = (x.to(accumulation_dtype(x)) for x in (keys, query))
        return _DpfpScores.apply(keys, query.detach().sign(), _live_pairs(query, nu))


def _live_pairs(query, nu):
    """Queries (B, d) -> (B, nu, d): the features of a query that are not zero for its signs alone.

    Of every component x_i, `r` has relu(x_i) and, d places on, relu(-x_i); one of them is zero. Seen along the other
    ones, `r` is |x|, and component i has a partner at distance j if both are of the same sign, each turn around the
    end of x counting as a change of sign.
    """
    d = query.shape[-1]
    partner = torch.arange(d, device=query.device) - torch.arange(1, nu + 1, device=query.device).unsqueeze(1)
    positive, magnitude = query > 0, query.abs()
    turned = (partner // d) % 2 == 1
    same_sign = positive.unsqueeze(1) == (positive[:, partner % d] ^ turned)
    return magnitude.unsqueeze(1) * magnitude[:, partner % d] * same_sign


def favor_scores(keys, query, omega):
    """FAVOR+ without eps, for the random features `omega` (d, m)."""
    with torch.autocast(keys.device.type, enabled=False):
        keys, query = (x.to(accumulation_dtype(x)) for x in (keys, query))
        return _FavorScores.apply(keys, query, omega.to(keys.dtype))


class _DpfpScores(torch.autograd.Function):
    """keys (B, L, d), signs of the query (B, d), its live pairs (B, nu, d) -> (B, L).

    Where the query's `r` is zero, that of the keys does not count, so `R = relu(sign(q) k)` of d components is all that
    is needed of a key. A score is `sum_j,i p_ji R_i R_{i-j}`. Its derivative by `R_i` has each pair of components twice,
    once from either side; the indices wrap around, so `R` is laid out with nu components repeated at both ends, and is
    then shifted by slicing.
    """

    @staticmethod
    def forward(ctx, keys, sign, pairs):
        nu = pairs.shape[1]
        scores, slope = keys.new_empty(keys.shape[:2]), torch.empty_like(keys)
        ahead = torch.stack([pairs[:, j - 1].roll(-j, -1) for j in range(1, nu + 1)], dim=1)
        for some in _in_cache(len(keys), keys.shape[1:].numel()):
            r, wrapped = _live_components(keys[some], sign[some], nu)
            total = torch.zeros_like(r)
            for j in range(1, nu + 1):
                total.addcmul_(_shifted(wrapped, j, nu), pairs[some, None, j - 1])
                total.addcmul_(_shifted(wrapped, -j, nu), ahead[some, None, j - 1])
            torch.sum(r * total, -1, out=scores[some])
            total *= r > 0
            torch.mul(total, sign[some, None], out=slope[some])
        scores /= 2
        ctx.save_for_backward(keys, sign, slope)
        ctx.nu = nu
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        keys, sign, slope = ctx.saved_tensors
        nu = ctx.nu
        grad_pairs = keys.new_empty(len(keys), nu, keys.shape[-1])
        for some in _in_cache(len(keys), keys.shape[1:].numel()):
            r, wrapped = _live_components(keys[some], sign[some], nu)
            for j in range(1, nu + 1):
                grad_pairs[some, j - 1] = torch.bmm(grad[some, None], r * _shifted(wrapped, j, nu)).squeeze(1)
        return slope * grad.unsqueeze(-1), None, grad_pairs


def _in_cache(batch, size):
    """Slices of the batch, `size` numbers a sequence, of as many sequences as stay in the cache, at least one."""
    step = max(1, CACHED // max(size, 1))
    return [slice(first, first + step) for first in range(0, batch, step)]


def _live_components(keys, sign, nu):
    """`R` of the keys (b, L, d), as a view of itself with nu components repeated beyond both ends, and that."""
    d = keys.shape[-1]
    wrapped = keys.new_empty(*keys.shape[:-1], d + 2 * nu)
    r = wrapped[..., nu : nu + d]
    torch.mul(keys, sign.unsqueeze(1), out=r)
    r.clamp_(min=0)
    for beyond in range(nu):
        wrapped[..., beyond] = r[..., (beyond - nu) % d]
        wrapped[..., nu + d + beyond] = r[..., beyond % d]
    return r, wrapped


def _shifted(wrapped, shift, nu):
    """`R.roll(shift)` as a view."""
    return wrapped[..., nu - shift : wrapped.shape[-1] - nu - shift]


class _FavorScores(torch.autograd.Function):
    """keys (B, L, d), query (B, d), omega (d, m) -> (B, L).

    Feature `+-j` of key times that of query is `exp(+-omega_j . (k + q) - |k|^2/2 - |q|^2/2) / 2m`: the same in k and
    q, and so are the derivatives.
    """

    @staticmethod
    def forward(ctx, keys, query, omega):
        m = omega.shape[1]
        smallest = math.log(2 * torch.finfo(keys.dtype).tiny)  # below it exp takes fifty times as long
        offset = (keys.square().sum(-1) + query.square().sum(-1, keepdim=True)) / 2 + math.log(2 * m)
        query_projected = query @ omega
        scores, slope = keys.new_empty(keys.shape[:2]), torch.empty_like(keys)
        for some in _in_cache(len(keys), keys.shape[1] * m):
            plus = torch.matmul(keys[some], omega).add_(query_projected[some, None])
            shift = offset[some].unsqueeze(-1)
            minus = torch.add(plus, shift).neg_()
            plus -= shift
            for part in (plus, minus):
                part.clamp_(min=smallest).exp_()
            torch.add(plus.sum(-1), minus.sum(-1), out=scores[some])
            plus -= minus
            torch.sub(plus @ omega.T, keys[some] * scores[some].unsqueeze(-1), out=slope[some])
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
