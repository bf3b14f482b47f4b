"""What a few queries read from fast weights written by a whole sequence, without forming the fast weights.

A read is a weighted sum of the values, `y = sum_i a_i v_i`; these functions give the weights `a`. Where the values
are one-hot and only the last state is read, as in the synthetic experiments, that saves the S columns of the state.
Shapes: keys (B, L, Dk), queries (B, Q, Dk), both after the feature map; beta (B, L); result (B, Q, L).
"""

import torch
import torch.nn.functional as F

CHUNK = 16  # short chunks: the overlaps inside a chunk are the larger cost


def softmax_read_weights(keys, queries):
    """Softmax attention with scores times 1/sqrt(d)."""
    return torch.softmax(queries @ keys.transpose(1, 2) * keys.shape[-1] ** -0.5, dim=-1)


def sum_read_weights(keys, queries, eps):
    """Sum rule with attention normalisation: `phi(k_i) . phi(q) / (sum_j phi(k_j) . phi(q) + eps)`."""
    scores = queries @ keys.transpose(1, 2)
    return scores / (scores.sum(-1, keepdim=True) + eps)


def dpfp_sum_read_weights(keys, phi_query, nu, eps):
    """`sum_read_weights` of DPFP keys for a single query, without forming the features of the keys.

    DPFP's features are products of two components of `r = [relu(k); relu(-k)]`, so the score of a key is a quadratic
    form in `r` whose matrix holds the query's features. keys (B, L, d) ahead of the feature map, phi_query
    (B, 1, 2 d nu) after it.
    """
    batch, width = keys.shape[0], 2 * keys.shape[-1]
    component = torch.arange(width, device=keys.device).unsqueeze(1)
    partner = (component - torch.arange(1, nu + 1, device=keys.device)) % width
    parts = phi_query.reshape(batch, nu, width).transpose(1, 2)
    form = keys.new_zeros(batch, width, width).scatter_add(2, partner.expand(batch, -1, -1), parts)
    scores = _QuadraticForm.apply(keys, form + form.transpose(1, 2)).unsqueeze(1)
    return scores / (scores.sum(-1, keepdim=True) + eps)


class _QuadraticForm(torch.autograd.Function):
    """`1/2 r^T form r` with `r = [relu(x); relu(-x)]`: x (B, L, d), symmetric form (B, 2d, 2d) -> (B, L).

    `form r`, needed for the value, is the gradient too, which spares autograd's second product and its copies.
    """

    @staticmethod
    def forward(ctx, x, form):
        r = torch.cat((x.relu(), (-x).relu()), dim=-1)
        product = r @ form
        ctx.save_for_backward(r, product)
        return (r * product).sum(-1) / 2

    @staticmethod
    def backward(ctx, grad):
        r, product = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        positive, negative = (grad * product * (r > 0)).chunk(2, dim=-1)
        return positive - negative, r.transpose(1, 2) @ (r * (grad / 2))


def delta_read_weights(keys, queries, beta):
    """Delta rule, read after the last write: `a_i = beta_i k_i . r_i` with `r_L = q`,
    `r_{i-1} = r_i - beta_i (k_i . r_i) k_i`, the update rule carried from the query back to the first key.

    Inside a chunk these L steps are one triangular solve, `(I + tril(diag(beta) K K^T, -1))^T w = K r`.
    """
    length = keys.shape[1]
    padding = -length % CHUNK if length > CHUNK else 0
    if padding:  # in front, with beta 0: such a step changes nothing
        keys = F.pad(keys, (0, 0, padding, 0))
        beta = F.pad(beta, (padding, 0))
    chunk = min(CHUNK, length)
    batch, padded, d_phi = keys.shape
    keys = keys.reshape(batch, padded // chunk, chunk, d_phi)
    beta = beta.reshape(batch, padded // chunk, chunk)
    overlap = torch.tril(beta.unsqueeze(-1) * (keys @ keys.transpose(2, 3)), -1)
    remainder = queries.transpose(1, 2)
    weights = []
    for k, b, o in zip(reversed(keys.unbind(1)), reversed(beta.unbind(1)), reversed(overlap.unbind(1)), strict=True):
        reads = torch.linalg.solve_triangular(o.transpose(1, 2), k @ remainder, upper=True, unitriangular=True)
        scaled = b.unsqueeze(-1) * reads
        remainder = torch.baddbmm(remainder, k.transpose(1, 2), scaled, alpha=-1)
        weights.append(scaled)
    return torch.cat(weights[::-1], dim=1)[:, padding:].transpose(1, 2)
