"""Feature maps of linear attention and the sum normalisation that follows them.

Plain functions on the last axis of a tensor, called per head before a fast weight rule:
``phi_k = sum_normalize(dpfp_feature_map(k, nu=1))``. Nothing here holds parameters.
"""

import math

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


def elu_feature_map(x):
    """``elu(x) + 1`` (Katharopoulos et al. 2020); ``(..., d) -> (..., d)``, dtype kept."""
    return F.elu(x) + 1


def tanh_feature_map(x):
    """``tanh(x)``, of the fwm baseline in the synthetic setting; ``(..., d) -> (..., d)``."""
    return torch.tanh(x)


def dpfp_feature_map(x, nu):
    """Deterministic parameter-free projection (Schlag et al. 2021, section 5.3).

    ``r = [relu(x); relu(-x)]`` and ``phi = concat_{j=1..nu} r * roll(r, j)``:
    ``(..., d) -> (..., 2 * d * nu)``, dtype kept. ``ValueError`` unless ``nu`` is an integer >= 1.
    """
    _check_positive_int("nu", nu)
    return _Dpfp.apply(x, nu)


class _Dpfp(torch.autograd.Function):
    """Autograd would keep and pass over a copy for each ``roll`` and ``cat``; this writes each product to its place."""

    @staticmethod
    def forward(ctx, x, nu):
        d = x.shape[-1]
        r = x.new_empty(*x.shape[:-1], 2 * d)
        torch.clamp(x, min=0, out=r[..., :d])
        torch.sub(r[..., :d], x, out=r[..., d:])  # relu(-x), exactly
        phi = x.new_empty(*x.shape[:-1], 2 * d * nu)
        for shift, part in enumerate(phi.split(2 * d, dim=-1), start=1):
            for to, partner in _rolled(shift, 2 * d):
                torch.mul(r[..., to], r[..., partner], out=part[..., to])
        ctx.save_for_backward(r)
        return phi

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (r,) = ctx.saved_tensors
        width = r.shape[-1]
        grad_r = torch.zeros_like(r)
        for shift, part in enumerate(grad.split(width, dim=-1), start=1):
            for to, partner in _rolled(shift, width):
                grad_r[..., to].addcmul_(part[..., to], r[..., partner])
                grad_r[..., partner].addcmul_(part[..., to], r[..., to])
        positive, negative = grad_r.mul_(r > 0).chunk(2, dim=-1)
        return positive - negative, None


def _rolled(shift, width):
    """``r.roll(shift)`` as two pieces that need no copy: pairs of slices (components, their partners)."""
    shift %= width
    pieces = [(slice(shift, width), slice(0, width - shift)), (slice(0, shift), slice(width - shift, width))]
    return pieces if shift else pieces[:1]


def favor_random_matrix(d, m, generator=None, dtype=torch.float32, device=None):
    """Random features of FAVOR+ (Choromanski et al. 2021, section 3.2): a ``(d, m)`` matrix.

    The columns are orthogonal within each block of ``d`` of them; their norms follow the chi
    distribution with ``d`` degrees of freedom, as the norms of Gaussian vectors do.
    ``generator`` must live on the device asked for. ``ValueError`` unless ``d, m >= 1``.
    """
    _check_positive_int("d", d)
    _check_positive_int("m", m)
    # QR is not there for half types, so they are drawn in float32 and rounded.
    draw = dtype if dtype == torch.float64 else torch.float32
    blocks = -(-m // d)
    gaussian = torch.randn(blocks, d, d, generator=generator, dtype=draw, device=device)
    q, r = torch.linalg.qr(gaussian)
    # LAPACK fixes the signs of q by its own convention; multiplying by those of r's diagonal
    # makes the orthogonal matrix uniformly distributed.
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    directions = q.transpose(0, 1).reshape(d, blocks * d)[:, :m]
    norms = torch.randn(d, m, generator=generator, dtype=draw, device=device).norm(dim=0)
    return (directions * norms).to(dtype)


def favor_feature_map(x, omega, eps=0.0):
    """FAVOR+ positive random features (Choromanski et al. 2021, lemma 1).

    ``(exp(+-omega^T x - |x|^2 / 2) + eps) / sqrt(2 m)``: ``(..., d) -> (..., 2 * m)``, the ``+``
    half first, dtype of ``x``. ``omega``: ``(d, m)`` of ``favor_random_matrix``. Half types are
    computed in float32, since the exponent is a difference of large numbers. ``omega`` is not trained
    and gets no gradient. ``ValueError`` where it does not fit ``x``.
    """
    if omega.dim() != 2 or omega.shape[0] != x.shape[-1] or omega.shape[1] < 1:
        raise ValueError(
            f"omega: expected shape (d, m) = ({x.shape[-1]}, m >= 1) for x of shape "
            f"{tuple(x.shape)}, got {tuple(omega.shape)}"
        )
    with torch.autocast(x.device.type, enabled=False):
        x_acc = x.to(accumulation_dtype(x))
        features = _Favor.apply(x_acc, omega.to(x_acc.dtype))
        if eps:
            features = features + eps / math.sqrt(2 * omega.shape[1])
        return features.to(x.dtype)


class _Favor(torch.autograd.Function):
    """The features without eps, in a quarter of autograd's passes over the largest tensor.

    What would be denormal becomes zero: computing ``exp`` there takes fifty times as long, and so it does at
    the logarithm of the smallest normal number, which rounds down; hence the distance from it.
    """

    @staticmethod
    def forward(ctx, x, omega):
        m = omega.shape[1]
        smallest = 2 * torch.finfo(x.dtype).tiny
        projected = x @ omega
        half_square = x.square().sum(-1, keepdim=True) / 2 + math.log(2 * m) / 2
        features = x.new_empty(*x.shape[:-1], 2 * m)
        torch.sub(projected, half_square, out=features[..., :m])
        torch.add(projected, half_square, out=features[..., m:]).neg_()
        features.clamp_(min=math.log(smallest)).exp_()
        F.threshold_(features, 2 * smallest, 0)
        ctx.save_for_backward(x, omega, features)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, omega, features = ctx.saved_tensors
        plus, minus = (grad * features).chunk(2, dim=-1)
        return (plus - minus) @ omega.mT - x * (plus + minus).sum(-1, keepdim=True), None


def sum_normalize(x, eps=0.0):
    """``x / (x.sum(-1) + eps)``, the sum normalisation of keys and queries (section 4.2).

    Same shape and dtype as ``x``; half types are summed in float32. A vector whose sum is below
    the smallest normal number of its dtype (zero, or all underflowed) has no usable direction:
    it becomes zero with zero gradient, so that no NaN or Inf arises from it.
    """
    return _SumNormalize.apply(x, eps)


class _SumNormalize(torch.autograd.Function):
    # With its own backward, since autograd's takes twice the time: it divides by the sum thrice.
    @staticmethod
    def forward(ctx, x, eps):
        with torch.autocast(x.device.type, enabled=False):
            x_acc = x.to(accumulation_dtype(x))
            total = x_acc.sum(-1, keepdim=True) + eps
            # "<" lets a NaN through, and x / inf is 0 in value and in gradient.
            total.masked_fill_(total.abs() < torch.finfo(x.dtype).tiny, math.inf)
            normalized = (x_acc / total).to(x.dtype)
        ctx.save_for_backward(normalized, total)
        return normalized

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        normalized, total = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            grad_acc = grad.to(total.dtype)
            mean = (normalized * grad_acc).sum(-1, keepdim=True)
            return ((grad_acc - mean) / total).to(normalized.dtype), None


def accumulation_dtype(x):
    """The dtype sums and states are held in: float64 for float64, float32 for all others."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _check_positive_int(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: expected an integer >= 1, got {value!r}")
