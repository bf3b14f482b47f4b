"""The fwm update rule of the synthetic setting, with an explicit backward.

A delta write, then ``W <- W / max(1, |W|_F)``. The division makes every step depend on all before it,
so the steps stay sequential, but no step needs the ``Dk x Dv`` matrix. Divisions scale what was
written before by a number, hence within a chunk of steps

    W_t = c_t W_0 + sum_{s <= t} w_ts k_s d_s^T       d_s: the difference written at step s
    W_t^T k_u = (W_{t-1}^T k_u + (k_t . k_u) d_t) / max(1, |W_{t-1} + k_t d_t^T|)   for the keys to come
    |W_{t-1} + k_t d_t^T|^2 = |W_{t-1}|^2 + 2 d_t . W_{t-1}^T k_t + |k_t|^2 |d_t|^2

and a step costs what the keys to come need, instead of several passes over ``Dk Dv`` numbers. In the
backward ``E_t = <dL/dW_t, W_t>`` takes the place of derivatives by the weights ``w_ts``: a division
that shrinks leaves nothing along ``W``, as ``W / |W|`` does not depend on ``|W|``, and so

    E_{t-1} = (0 where step t divided, else E_t) - beta_t v_t . dL/dd_t

The batch is the last axis of what the steps work on: they are many and small, and so every operand
is one piece of memory.
"""

import torch
from torch.autograd.function import once_differentiable

from fwp_fairseq.ops.feature_maps import accumulation_dtype
from fwp_fairseq.ops.validation import check_inputs, check_state

# Steps per chunk: longer ones save on states, shorter ones on the keys to come.
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
            gram = _steps_first(torch.bmm(k, k.mT)).unsqueeze(2)
            half_squares = gram.diagonal().squeeze(0).T / 2
            strength = _steps_first(beta)
            values = _steps_first(v).mul_(strength.unsqueeze(1))
            # What a step would remove with all of its strength, c W^T k, of the matrix so far.
            removed = torch.zeros_like(values) if state is None else _steps_first(torch.bmm(k, state))
            written, inverse_norms = torch.empty_like(values), torch.ones_like(strength)
            square = k.new_zeros(k.shape[0]) if state is None else state.square().sum((-2, -1))
            steps = zip(gram, values, strength, half_squares, removed, written, inverse_norms)
            for t, (gram_t, value, beta_t, half, r, d, inverse_norm) in enumerate(steps):
                torch.addcmul(value, beta_t, r, value=-1, out=d)
                square.add_(torch.addcmul(r, half, d).mul_(d).sum(0), alpha=2)
                if t > 0 or state is not None:
                    torch.rsqrt(square.clamp(min=1), out=inverse_norm)
                    square.clamp_(max=1)
                removed[t + 1 :].addcmul_(gram_t[t + 1 :], d).mul_(inverse_norm)
            final = _products_to_the_end(inverse_norms)
            new_state = torch.bmm(k.mT, _batch_first(final.unsqueeze(1) * written))
            if state is not None:
                new_state.addcmul_(final[0, :, None, None], state)
            ctx.save_for_backward(k, v, beta, state, new_state, gram, removed, inverse_norms)
            return new_state

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_state):
        k, v, beta, state, new_state, gram, removed, inverse_norms = ctx.saved_tensors
        with torch.autocast(k.device.type, enabled=False):
            grad_state = grad_state.contiguous()
            strength = _steps_first(beta)
            difference = _steps_first(v).sub_(removed)
            written = strength.unsqueeze(1) * difference
            values = torch.addcmul(written, strength.unsqueeze(1), removed)
            squares = gram.diagonal().squeeze(0).T
            # |W + k d^T|^2 changes by 2 d . r + |k|^2 |d|^2; its derivative by d.
            slope = torch.addcmul(removed, squares.unsqueeze(1), written).mul_(2)
            kept, factor = inverse_norms >= 1, inverse_norms.square().mul_(-0.5)
            final = _products_to_the_end(inverse_norms)
            along_state = (grad_state * new_state).sum((-2, -1))
            grad_square = torch.zeros_like(along_state)
            grad_squares, grad_removed = torch.empty_like(strength), written * 2
            grad_written = _steps_first(torch.bmm(k, grad_state))  # so far by what is read after the step
            steps = zip(
                gram, values, strength, slope, inverse_norms, kept, factor, grad_written, grad_removed, grad_squares
            )
            for t, step in reversed([*enumerate(steps)]):
                gram_t, value, beta_t, slope_t, inverse_norm, kept_t, factor_t, grad_d, grad_r, grad_square_t = step
                grad_written[: t + 1].mul_(inverse_norm)
                by_norm = torch.sub(along_state, grad_square, alpha=2).mul_(factor_t)
                grad_square = torch.where(kept_t, grad_square, by_norm, out=grad_square_t)
                grad_d.addcmul_(grad_square, slope_t)
                along_state.mul_(kept_t).sub_((value * grad_d).sum(0))
                grad_r.mul_(grad_square).addcmul_(beta_t, grad_d, value=-1)
                grad_written[:t].addcmul_(gram_t[:t], grad_r)

            removed_first, written_first = _batch_first(grad_removed), _batch_first(written)
            grad_gram = torch.bmm(removed_first, written_first.mT).mul_(_weights(inverse_norms).permute(2, 0, 1))
            grad_gram.diagonal(dim1=1, dim2=2).copy_((grad_squares * written.square().sum(1)).T)
            grad_k = torch.bmm(grad_gram + grad_gram.mT, k)
            grad_k.baddbmm_(_batch_first(final.unsqueeze(1) * written), grad_state.mT)
            grad_v = _batch_first(strength.unsqueeze(1) * grad_written)
            grad_beta = (grad_written * difference).sum(1).T
            if state is None:
                return grad_k, grad_v, grad_beta, None
            removed_first[:, 1:].mul_(inverse_norms[:-1].cumprod(0).T.unsqueeze(2))
            grad_k.baddbmm_(removed_first, state.mT)
            grad_initial = torch.bmm(k.mT, removed_first)
            grad_initial.addcmul_(final[0, :, None, None], grad_state)
            grad_initial.addcmul_(2 * grad_square[:, None, None], state)
            return grad_k, grad_v, grad_beta, grad_initial


def _products_to_the_end(inverse_norms):
    """``(L, B) -> (L, B)``: the product of every number with all after it."""
    return inverse_norms.flip(0).cumprod(0).flip(0)


def _weights(inverse_norms):
    """``(L, B) -> (L, L, B)``: at ``[t, s]`` what step ``t`` finds left of step ``s``; 0 for ``s >= t``."""
    weights = inverse_norms.new_zeros(len(inverse_norms), *inverse_norms.shape)
    weights.diagonal(-1).copy_(inverse_norms[:-1].T)
    for t in range(2, len(inverse_norms)):
        torch.mul(weights[t - 1, : t - 1], inverse_norms[t - 1], out=weights[t, : t - 1])
    return weights


def _steps_first(x):
    """``(B, L, ...) -> (L, ..., B)``, always a copy: the steps write into it."""
    return x.movedim(0, -1).clone(memory_format=torch.contiguous_format)


def _batch_first(x):
    """``(L, ..., B) -> (B, L, ...)``, a copy."""
    return x.movedim(-1, 0).clone(memory_format=torch.contiguous_format)
