"""The fwm update rule of the synthetic setting, with an explicit backward.

A delta write, then ``W <- W / max(1, |W|_F)``. The division makes every step depend on all before it,
so the steps stay sequential, but no step needs the ``Dk x Dv`` matrix. Divisions scale what was
written before by a number, hence within a chunk of steps

    W_t = c_t W_0 + sum_{s <= t} w_ts k_s d_s^T       d_s: the difference written at step s
    W_{t-1}^T k_t = c_{t-1} W_0^T k_t + sum_{s < t} w_{t-1,s} (k_s . k_t) d_s
    |W_{t-1} + k_t d_t^T|^2 = |W_{t-1}|^2 + 2 d_t . W_{t-1}^T k_t + |k_t|^2 |d_t|^2

and a step costs ``t Dv`` instead of several passes over ``Dk Dv`` numbers.
"""

import torch
from torch.autograd.function import once_differentiable

from fwp_fairseq.ops.feature_maps import accumulation_dtype
from fwp_fairseq.ops.validation import check_inputs, check_state

# Steps per chunk: longer ones save on states, shorter ones on the sums over the steps of a chunk.
_CHUNK = 64


@torch.compiler.disable
def fast_weight_fwm(k, v, beta, state=None):
    """The state after ``L`` steps of the fwm rule; reading it is left to the caller.

    ``k: (B, L, Dk)``, ``v: (B, L, Dv)``, ``beta: (B, L)`` without a head axis, ``state`` and result
    ``(B, Dk, Dv)`` in float32 (float64 for float64 inputs). Without a state the first step writes
    ``beta_1 k_1 v_1^T`` and does not rescale. ``ValueError`` where a shape, dtype or device does not fit.
    """
    check_inputs("B, L", k, k, v, beta=beta)
    shape = (k.shape[0], k.shape[-1], v.shape[-1])
    dtype, fresh = accumulation_dtype(k), state is None
    if fresh:
        state = torch.zeros(shape, dtype=dtype, device=k.device)
    else:
        check_state("state", state, shape, k)
    chunks = zip(*(x.to(dtype).split(_CHUNK, dim=1) for x in (k, v, beta)))
    for i, (k_i, v_i, beta_i) in enumerate(chunks):
        state = _FwmChunk.apply(k_i, v_i, beta_i, state, fresh and i == 0)
    return state


class _FwmChunk(torch.autograd.Function):
    @staticmethod
    def forward(ctx, k, v, beta, state, fresh):
        with torch.autocast(k.device.type, enabled=False):
            length = k.shape[1]
            gram, from_state = torch.bmm(k, k.mT), torch.bmm(k, state)
            # weights[:, t]: the factors w of steps s < t, 1 for t itself, and in the last column c,
            # all as they are before step t.
            weights = k.new_zeros(k.shape[0], length + 1, length + 1)
            weights[:, 0, -1] = 1
            removed, written = torch.empty_like(v), torch.empty_like(v)
            inverse_norms = torch.ones_like(beta)
            square = state.square().sum((-2, -1))
            for t in range(length):
                now = weights[:, t]
                now[:, t] = 1
                r = removed[:, t]
                torch.mul(from_state[:, t], now[:, -1:], out=r)
                if t > 0:
                    row = gram[:, t, :t] * now[:, :t]
                    r += torch.bmm(row.unsqueeze(1), written[:, :t]).squeeze(1)
                d = (v[:, t] - r).mul_(beta[:, t, None])
                written[:, t] = d
                square = square + (d * torch.addcmul(2 * r, gram[:, t, t, None], d)).sum(-1)
                if t > 0 or not fresh:
                    inverse_norms[:, t] = square.clamp(min=1).rsqrt_()
                    square.clamp_(max=1)
                torch.mul(now, inverse_norms[:, t, None], out=weights[:, t + 1])
            ctx.save_for_backward(k, v, beta, state, weights, removed, inverse_norms)
            last = weights[:, -1]
            new_state = torch.bmm((last[:, :-1, None] * k).mT, written)
            return new_state.addcmul_(last[:, -1, None, None], state)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_state):
        k, v, beta, state, weights, removed, inverse_norms = ctx.saved_tensors
        with torch.autocast(k.device.type, enabled=False):
            length, grad_state = k.shape[1], grad_state.contiguous()
            gram, from_state = torch.bmm(k, k.mT), torch.bmm(k, state)
            difference = v - removed
            written = beta.unsqueeze(-1) * difference
            # |W + k d^T|^2 changes by 2 d . r + |k|^2 |d|^2; these are half its derivative by d.
            slope = torch.addcmul(removed, torch.linalg.vecdot(k, k).unsqueeze(-1), written)
            # Transposed, since a product of a row and a matrix is faster than one with a column.
            columns = (gram * weights[:, :-1, :-1]).mT.contiguous()
            written_columns = written.mT.contiguous()
            last = weights[:, -1]
            reads = torch.bmm(k, grad_state)
            grad_weights = torch.empty_like(last)
            grad_weights[:, :-1] = torch.linalg.vecdot(written, reads)
            grad_weights[:, -1] = (state * grad_state).sum((-2, -1))
            grad_written = last[:, :-1, None] * reads
            grad_removed = torch.empty_like(v)
            grad_squares = torch.empty_like(beta)
            grad_square = torch.zeros_like(beta[:, 0])
            was_scaled = inverse_norms < 1
            scaled_slope = inverse_norms.pow(3).mul_(-0.5)
            for t in reversed(range(length)):
                grad_norm = torch.linalg.vecdot(grad_weights, weights[:, t]) * scaled_slope[:, t]
                grad_square = torch.where(was_scaled[:, t], grad_norm, grad_square)
                grad_squares[:, t] = grad_square
                grad_weights *= inverse_norms[:, t, None]
                twice = 2 * grad_square.unsqueeze(-1)
                grad_d, grad_r = grad_written[:, t], grad_removed[:, t]
                grad_d.addcmul_(twice, slope[:, t])
                if t + 1 < length:
                    later = torch.bmm(columns[:, t, None, t + 1 :], grad_removed[:, t + 1 :])
                    grad_d += later.squeeze(1)
                torch.mul(twice, written[:, t], out=grad_r)
                grad_r.addcmul_(beta[:, t, None], grad_d, value=-1)
                if t > 0:
                    grad_row = torch.bmm(grad_r.unsqueeze(1), written_columns[:, :, :t]).squeeze(1)
                    grad_weights[:, :t].addcmul_(gram[:, t, :t], grad_row)
                grad_weights[:, -1] += torch.linalg.vecdot(from_state[:, t], grad_r)

            grad_gram = torch.bmm(grad_removed, written.mT).mul_(weights[:, :-1, :-1]).tril_(-1)
            grad_gram.diagonal(dim1=-2, dim2=-1).copy_(
                grad_squares * torch.linalg.vecdot(written, written)
            )
            grad_reads = weights[:, :-1, -1:] * grad_removed
            grad_k = torch.bmm(grad_gram + grad_gram.mT, k)
            grad_k.baddbmm_(grad_reads, state.mT).baddbmm_(last[:, :-1, None] * written, grad_state.mT)
            grad_initial = torch.bmm(k.mT, grad_reads)
            grad_initial.addcmul_(last[:, -1, None, None], grad_state)
            grad_initial.addcmul_(2 * grad_square[:, None, None], state)
            grad_v = beta.unsqueeze(-1) * grad_written
            grad_beta = torch.linalg.vecdot(grad_written, difference)
            return grad_k, grad_v, grad_beta, grad_initial, None
