"""What a few queries read from fast weights written by a whole sequence, without forming the fast weights.

A read is a weighted sum of the values, `y = sum_i a_i v_i`; these functions give the weights `a`. Where the values
are one-hot and only the last state is read, as in the synthetic experiments, that saves the S columns of the state.
Shapes: keys (B, L, Dk), queries (B, Q, Dk), both after the feature map; beta (B, L); result (B, Q, L).
"""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

CHUNK = 16  # short chunks: the overlaps inside a chunk are the larger cost


def softmax_read_weights(keys, queries):
    """Softmax attention with scores times 1/sqrt(d)."""
    return torch.softmax(queries @ keys.transpose(1, 2) * keys.shape[-1] ** -0.5, dim=-1)


def sum_read_weights(keys, queries, eps):
    """Sum rule with attention normalisation: `phi(k_i) . phi(q) / (sum_j phi(k_j) . phi(q) + eps)`."""
    return sum_weights(queries @ keys.transpose(1, 2), eps)


def sum_weights(scores, eps):
    """The sum rule's weights from the scores `phi(k_i) . phi(q)`, of any shape ending in L."""
    return scores / (scores.sum(-1, keepdim=True) + eps)


def delta_read_weights(keys, queries, beta):
    """Delta rule, read after the last write: `a_i = beta_i k_i . r_i` with `r_L = q` and
    `r_{i-1} = r_i - beta_i (k_i . r_i) k_i`, which is the rule carried from the query back to the first key."""
    padding = -keys.shape[1] % CHUNK
    if padding:  # in front, with beta 0: such a step changes nothing
        keys = F.pad(keys, (0, 0, padding, 0))
        beta = F.pad(beta, (padding, 0))
    return _DeltaRead.apply(keys, queries.transpose(1, 2), beta)[:, padding:].transpose(1, 2)


class _DeltaRead(torch.autograd.Function):
    """keys (B, L, Dk) with L a multiple of CHUNK, queries (B, Dk, Q), beta (B, L) -> (B, L, Q).

    The steps of a chunk are one triangular system, `(I + tril(diag(beta) K K^T, -1))^T w = K r`; all chunks' matrices
    are inverted at once, and what is left in sequence is a few small products a chunk. The backward pass is the same
    chain in the other direction.
    """

    @staticmethod
    def forward(ctx, keys, queries, beta):
        batch, length, d_phi = keys.shape
        shape = (batch, length // CHUNK, CHUNK)
        keys, beta = keys.reshape(*shape, d_phi), beta.reshape(shape)
        overlap = keys @ keys.transpose(2, 3)
        system = torch.tril(beta.unsqueeze(-1) * overlap, -1)
        identity = torch.eye(CHUNK, dtype=keys.dtype, device=keys.device)
        inverse = torch.linalg.solve_triangular(
            system.transpose(2, 3), identity.expand_as(system), upper=True, unitriangular=True
        )
        chunks = shape[1]
        remainders = keys.new_empty(chunks, *queries.shape)
        solved = keys.new_empty(batch, chunks, CHUNK, queries.shape[2])
        remainder = queries
        for c in reversed(range(chunks)):
            remainders[c] = remainder
            solved[:, c] = weights = inverse[:, c] @ (keys[:, c] @ remainder)
            written = beta[:, c].unsqueeze(-1) * weights
            remainder = torch.baddbmm(remainder, keys[:, c].transpose(1, 2), written, alpha=-1)
        ctx.save_for_backward(keys, beta, overlap, inverse, remainders, solved)
        return (beta.unsqueeze(-1) * solved).reshape(batch, length, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        keys, beta, overlap, inverse, remainders, solved = ctx.saved_tensors
        batch, chunks = beta.shape[:2]
        grad = grad.reshape(solved.shape)
        strength = beta.unsqueeze(-1)
        grad_remainder = torch.zeros_like(remainders[0])
        grad_after = torch.empty_like(remainders)
        grad_scaled, grad_product = torch.empty_like(solved), torch.empty_like(solved)
        for c in range(chunks):
            grad_after[c] = grad_remainder
            grad_scaled[:, c] = total = grad[:, c] - keys[:, c] @ grad_remainder
            grad_product[:, c] = product = inverse[:, c].transpose(1, 2) @ (strength[:, c] * total)
            grad_remainder = torch.baddbmm(grad_remainder, keys[:, c].transpose(1, 2), product)
        # what the chain leaves behind, for all chunks at once
        grad_system = torch.tril(solved @ grad_product.transpose(2, 3), -1).neg_()
        grad_beta = (solved * grad_scaled).sum(-1) + (grad_system * overlap).sum(-1)
        grad_overlap = strength * grad_system
        left = torch.cat((grad_product, -strength * solved), dim=-1)
        right = torch.cat((remainders, grad_after), dim=-1).permute(1, 0, 3, 2)
        grad_keys = (grad_overlap + grad_overlap.transpose(2, 3)) @ keys
        grad_keys.flatten(0, 1).baddbmm_(left.flatten(0, 1), right.flatten(0, 1))
        return grad_keys.reshape(batch, -1, keys.shape[-1]), grad_remainder, grad_beta.reshape(batch, -1)
