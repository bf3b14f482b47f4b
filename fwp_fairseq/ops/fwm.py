"""The fwm update rule of the synthetic setting, with an explicit backward.

A delta write, then ``W <- W / max(1, |W|_F)``. The division makes every step depend on all before it,
so the steps stay sequential, but no step needs the ``Dk x Dv`` matrix. Divisions scale what was
written before by a number, hence within a chunk of steps

    W_t = c_t W_0 + sum_{s <= t} w_ts k_s d_s^T       d_s: the difference written at step s
    W_{t-1}^T k_t = c_{t-1} W_0^T k_t + sum_{s < t} w_{t-1,s} (k_s . k_t) d_s
    |W_{t-1} + k_t d_t^T|^2 = |W_{t-1}|^2 + 2 d_t . W_{t-1}^T k_t + |k_t|^2 |d_t|^2

and a step costs ``t Dv`` instead of several passes over ``Dk Dv`` numbers. The batch is the last
axis of what the steps work on: they are many and small, and so every operand is one piece of memory.
"""

import torch
from torch.autograd.function import once_differentiable

from fwp_fairseq.ops.feature_maps import accumulation_dtype
from fwp_fairseq.ops.validation import check_inputs, check_state

# Steps per chunk: longer ones save on states, shorter ones on the sums over the steps of a chunk.
_CHUNK = 20


@torch.compiler.disable
def fast_weight_fwm(k, v, beta, state=None):
    """The state after ``L`` steps of the fwm rule; reading it is left to the caller.

    ``k: (B, L, Dk)``, ``v: (B, L, Dv)``, ``beta: (B, L)`` without a head axis, ``state`` and result
    ``(B, Dk, Dv)`` in float32 (float64 for float64 inputs). Without a state the first step writes
    ``beta_1 k_1 v_1^T`` and does not rescale. ``ValueError`` where a shape, dtype or device does not fit.
    """
    check_inputs("B, L", k, k, v, beta=beta)
    shape = (k.shape[0], k.shape[-1], v.shape[-1])
    if state is not None:
        check_state("state", state, shape, k)
    inputs = (x.to(accumulation_dtype(k)).split(_CHUNK, dim=1) for x in (k, v, beta))
    for k_chunk, v_chunk, beta_chunk in zip(*inputs):
        state = _FwmChunk.apply(k_chunk, v_chunk, beta_chunk, state)
    return state


class _FwmChunk(torch.autograd.Function):
    @staticmethod
    def forward(ctx, k, v, beta, state):
        with torch.autocast(k.device.type, enabled=False):
            batch, length = beta.shape
            gram = _steps_first(torch.bmm(k, k.mT))
            half_squares = gram.diagonal().T / 2
            values, strength = _steps_first(v), _steps_first(beta)
            values *= strength.unsqueeze(1)
            # weights[t, s]: the factor of the write of step s before step t; 1 for t itself.
            weights = k.new_zeros(length + 1, length + 1, batch)
            weights.diagonal().fill_(1)
            inverse_norms = k.new_ones(length, batch)
            removed, written = torch.zeros_like(values), torch.empty_like(values)
            square = k.new_zeros(batch)
            if state is not None:
                from_state = _steps_first(torch.bmm(k, state))
                state_weights = k.new_ones(length + 1, batch)
                square += state.square().sum((-2, -1))
            steps = zip(
                gram.unbind(), weights[:-1].unbind(), weights[1:].unbind(), values.unbind(),
                strength.unbind(), half_squares.unbind(), removed.unbind(), written.unbind(),
                inverse_norms.unbind(),
            )
            for t, (gram_t, now, after, value, beta_t, half, r, d, inverse_norm) in enumerate(steps):
                if t > 0:
                    row = gram_t[:t] * now[:t]
                    torch.sum(row.unsqueeze(1) * written[:t], 0, out=r)
                if state is not None:
                    r.addcmul_(from_state[t], state_weights[t])
                torch.addcmul(value, beta_t, r, value=-1, out=d)
                square.add_((d * torch.addcmul(r, half, d)).sum(0), alpha=2)
                if t > 0 or state is not None:
                    torch.rsqrt(square.clamp(min=1), out=inverse_norm)
                    square.clamp_(max=1)
                torch.mul(now[: t + 1], inverse_norm, out=after[: t + 1])
                if state is not None:
                    torch.mul(state_weights[t], inverse_norm, out=state_weights[t + 1])
            ctx.save_for_backward(k, v, beta, state, gram, weights, removed, inverse_norms)
            new_state = torch.bmm(k.mT, _batch_first(weights[-1, :-1].unsqueeze(1) * written))
            if state is not None:
                new_state.addcmul_(state_weights[-1, :, None, None], state)
            return new_state

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_state):
        k, v, beta, state, gram, weights, removed, inverse_norms = ctx.saved_tensors
        with torch.autocast(k.device.type, enabled=False):
            length, grad_state = k.shape[1], grad_state.contiguous()
            strength = _steps_first(beta)
            difference = _steps_first(v).sub_(removed)
            written = strength.unsqueeze(1) * difference
            # |W + k d^T|^2 changes by 2 d . r + |k|^2 |d|^2; this is half its derivative by d.
            slope = torch.addcmul(removed, gram.diagonal().T.unsqueeze(1), written)
            # columns[s, t]: how much of d_s is in r_t.
            columns = (gram * weights[:-1, :-1]).transpose(0, 1).contiguous()
            final = weights[-1, :-1]
            reads = _steps_first(torch.bmm(k, grad_state))
            grad_weights = (written * reads).sum(1)
            grad_written = reads.mul_(final.unsqueeze(1))
            grad_removed = torch.empty_like(written)
            grad_squares = torch.empty_like(strength)
            grad_square = torch.zeros_like(strength[0])
            was_scaled = inverse_norms < 1
            factor = inverse_norms.pow(3).mul_(-0.5)
            if state is not None:
                from_state = _steps_first(torch.bmm(k, state))
                state_weights = torch.cat((torch.ones_like(strength[:1]), inverse_norms)).cumprod(0)
                grad_state_weight = (state * grad_state).sum((-2, -1))
            steps = zip(
                gram.unbind(), weights[:-1].unbind(), columns.unbind(), strength.unbind(),
                slope.unbind(), written.unbind(), inverse_norms.unbind(), was_scaled.unbind(),
                factor.unbind(), grad_written.unbind(), grad_removed.unbind(), grad_squares.unbind(),
            )
            for t, step in reversed([*enumerate(steps)]):
                gram_t, now, column, beta_t, slope_t, d, inverse_norm = step[:7]
                scaled, factor_t, grad_d, grad_r, grad_square_t = step[7:]
                grad_norm = (grad_weights[: t + 1] * now[: t + 1]).sum(0)
                if state is not None:
                    grad_norm.addcmul_(grad_state_weight, state_weights[t])
                    grad_state_weight *= inverse_norm
                torch.where(scaled, grad_norm.mul_(factor_t), grad_square, out=grad_square_t)
                grad_square = grad_square_t
                if t + 1 < length:
                    grad_d += (column[t + 1 :].unsqueeze(1) * grad_removed[t + 1 :]).sum(0)
                grad_d.addcmul_(grad_square, slope_t, value=2)
                torch.mul(grad_square, d, out=grad_r).mul_(2)
                grad_r.addcmul_(beta_t, grad_d, value=-1)
                if t > 0:
                    earlier = grad_weights[:t].mul_(inverse_norm)
                    earlier.addcmul_(gram_t[:t], (written[:t] * grad_r).sum(1))
                if state is not None:
                    grad_state_weight += (from_state[t] * grad_r).sum(0)

            removed_first, written_first = _batch_first(grad_removed), _batch_first(written)
            grad_gram = torch.bmm(removed_first, written_first.mT)
            grad_gram = grad_gram.mul_(weights[:-1, :-1].permute(2, 0, 1)).tril_(-1)
            grad_gram.diagonal(dim1=1, dim2=2).copy_((grad_squares * written.square().sum(1)).T)
            grad_k = torch.bmm(grad_gram + grad_gram.mT, k)
            grad_k.baddbmm_(_batch_first(final.unsqueeze(1) * written), grad_state.mT)
            grad_v = _batch_first(strength.unsqueeze(1) * grad_written)
            grad_beta = (grad_written * difference).sum(1).T
            if state is None:
                return grad_k, grad_v, grad_beta, None
            grad_reads = state_weights[:-1].T.unsqueeze(-1) * removed_first
            grad_k.baddbmm_(grad_reads, state.mT)
            grad_initial = torch.bmm(k.mT, grad_reads)
            grad_initial.addcmul_(state_weights[-1, :, None, None], grad_state)
            grad_initial.addcmul_(2 * grad_square[:, None, None], state)
            return grad_k, grad_v, grad_beta, grad_initial


def _steps_first(x):
    """``(B, L, ...) -> (L, ..., B)``, always a copy: the steps write into it."""
    return x.movedim(0, -1).clone(memory_format=torch.contiguous_format)


def _batch_first(x):
    """``(L, ..., B) -> (B, L, ...)``, a copy."""
    return x.movedim(-1, 0).clone(memory_format=torch.contiguous_format)
