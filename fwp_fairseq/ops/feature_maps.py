"""Feature maps of linear attention and the sum normalisation that follows them.

Plain functions on the last axis of a tensor, called per head before a fast weight rule:
``phi_k = sum_normalize(dpfp_feature_map(k, nu=1))``. Nothing here holds parameters.
"""

import math

import torch
import torch.nn.functional as F


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
    r = torch.cat((x, -x), dim=-1).relu()
    return torch.cat([r * r.roll(shift, dims=-1) for shift in range(1, nu + 1)], dim=-1)


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
    computed in float32, since the exponent is a difference of large numbers. ``ValueError`` where
    ``omega`` does not fit ``x``.
    """
    if omega.dim() != 2 or omega.shape[0] != x.shape[-1] or omega.shape[1] < 1:
        raise ValueError(
            f"omega: expected shape (d, m) = ({x.shape[-1]}, m >= 1) for x of shape "
            f"{tuple(x.shape)}, got {tuple(omega.shape)}"
        )
    scale = 1 / math.sqrt(2 * omega.shape[1])
    with torch.autocast(x.device.type, enabled=False):
        x_acc = x.to(accumulation_dtype(x))
        projected = x_acc @ omega.to(x_acc.dtype)
        # The scale goes into the exponent, which saves a pass over the largest tensor.
        half_square = x_acc.square().sum(-1, keepdim=True) / 2 - math.log(scale)
        features = torch.cat((projected - half_square, -projected - half_square), dim=-1).exp()
        if eps:
            features = features + eps * scale
        return features.to(x.dtype)


def sum_normalize(x, eps=0.0):
    """``x / (x.sum(-1) + eps)``, the sum normalisation of keys and queries (section 4.2).

    Same shape and dtype as ``x``; half types are summed in float32. A vector whose sum is below
    the smallest normal number of its dtype (zero, or all underflowed) has no usable direction:
    it becomes zero with zero gradient, so that no NaN or Inf arises from it.
    """
    with torch.autocast(x.device.type, enabled=False):
        x_acc = x.to(accumulation_dtype(x))
        total = x_acc.sum(-1, keepdim=True) + eps
        # "<" lets a NaN through, and x / inf is 0 in value and in gradient.
        unusable = total.abs() < torch.finfo(x.dtype).tiny
        return (x_acc / total.masked_fill(unusable, math.inf)).to(x.dtype)


def accumulation_dtype(x):
    """The dtype sums and states are held in: float64 for float64, float32 for all others."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _check_positive_int(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: expected an integer >= 1, got {value!r}")
