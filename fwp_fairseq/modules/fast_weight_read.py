"""What a few queries read from fast weights written by a whole sequence, without forming the fast weights.

A read is a weighted sum of the values, `y = sum_i a_i v_i`; these functions give the weights `a`. Where the values
are one-hot and only the last state is read, as in the synthetic experiments, that saves the S columns of the state.
Shapes: keys (B, L, Dk), queries (B, Q, Dk), both after the feature map; beta (B, L); result (B, Q, L).
"""

import torch
import torch.nn.functional as F

CHUNK = 64


def softmax_read_weights(keys, queries):
    """Softmax attention with scores times 1/sqrt(d)."""
    return torch.softmax(queries @ keys.transpose(1, 2) * keys.shape[-1] ** -0.5, dim=-1)


def sum_read_weights(keys, queries, eps):
    """Sum rule with attention normalisation: `phi(k_i) . phi(q) / (sum_j phi(k_j) . phi(q) + eps)`."""
    scores = queries @ keys.transpose(1, 2)
    return scores / (scores.sum(-1, keepdim=True) + eps)


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
