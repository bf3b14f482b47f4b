"""The sum rule in chunks, in plain torch, with an explicit backward: linear in L.

With the state ``W`` at the start of a chunk, ``Y = Q W + tril(Q K^T) V`` and ``W <- W + K^T V``.
"""

import torch
from torch.autograd.function import once_differentiable

from fwp_fairseq.ops.chunks import cut_into_spans
from fwp_fairseq.ops.feature_maps import accumulation_dtype


def chunked_sum(q, k, v, state, chunk=None):
    """``(out, new_state)`` of the sum rule; ``state: (B, H, Dk, Dv)`` in float32 or float64."""
    chunk = chunk or chunk_length(q.shape[-1], v.shape[-1])
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, state)):
        return _ChunkedSum.apply(q, k, v, state, chunk)
    return _forward(q, k, v, state, chunk)


def sum_of_one_chunk(q, k, v):
    """``(out, new_state)`` of a sequence that is no longer than a chunk and starts from zeros, which nothing reads."""
    dtype = accumulation_dtype(q)
    with torch.autocast(v.device.type, enabled=False):
        queries, keys, values = (x.to(dtype) for x in (q, k, v))
        return ((queries @ keys.mT).tril() @ values).to(v.dtype), keys.mT @ values


def chunk_length(key_size, value_size):
    """Steps per chunk: the larger the heads, the more work a chunk may do within itself."""
    return 32 if max(key_size, value_size) <= 32 else 64


class _ChunkedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, state, chunk):
        span_states = []
        out, new_state = _forward(q, k, v, state, chunk, span_states)
        ctx.save_for_backward(q, k, v, *span_states)
        ctx.chunk, ctx.dtype = chunk, state.dtype
        return out, new_state

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_state):
        return *_backward(ctx, grad_out, grad_state), None


def _spans(q, v, chunk):
    heads, (key_size, value_size) = q.shape[0] * q.shape[1], (q.shape[-1], v.shape[-1])
    per_step = 2 * key_size + 2 * value_size + chunk
    return cut_into_spans(q.shape[2], chunk, heads * (chunk * per_step + key_size * value_size))


def _forward(q, k, v, state, chunk, span_states=None):
    """Fills ``span_states``, which the backward needs, where it is given."""
    with torch.autocast(v.device.type, enabled=False):
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        weights = state.flatten(0, 1)
        for span in _spans(q, v, chunk):
            queries, keys, values = (span.load(x, state.dtype) for x in (q, k, v))
            states = values.new_empty(span.count + 1, *weights.shape)
            states[0] = weights
            torch.bmm(keys.mT, values, out=states[1:].flatten(0, 1))
            for i in range(span.count):
                states[i + 1] += states[i]
            y = torch.bmm(queries, states[:-1].flatten(0, 1))
            span.store(y.baddbmm_(torch.bmm(queries, keys.mT).tril_(), values), out)
            weights = states[-1]
            if span_states is not None:
                span_states.append(states[:-1])
        return out, weights.clone().unflatten(0, state.shape[:2])


def _backward(ctx, grad_out, grad_state):
    q, k, v, *span_states = ctx.saved_tensors
    grads = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)]
    grad_weights = grad_state.flatten(0, 1)
    with torch.autocast(q.device.type, enabled=False):
        for span, states in zip(reversed(_spans(q, v, ctx.chunk)), reversed(span_states)):
            queries, keys, values, reads = (span.load(x, ctx.dtype) for x in (q, k, v, grad_out))
            grad_states = states.new_empty(span.count + 1, *grad_weights.shape)
            grad_states[-1] = grad_weights
            torch.bmm(queries.mT, reads, out=grad_states[:-1].flatten(0, 1))
            for i in reversed(range(span.count)):
                grad_states[i] += grad_states[i + 1]
            grad_weights = grad_states[0]

            after = grad_states[1:].flatten(0, 1)
            scores = torch.bmm(queries, keys.mT).tril_()
            grad_scores = torch.bmm(reads, values.mT).tril_()
            grad_q = torch.bmm(reads, states.flatten(0, 1).mT).baddbmm_(grad_scores, keys)
            grad_k = torch.bmm(values, after.mT).baddbmm_(grad_scores.mT, queries)
            grad_v = torch.bmm(keys, after).baddbmm_(scores.mT, reads)
            for x, target in zip((grad_q, grad_k, grad_v), grads):
                span.store(x, target)
        return *grads, grad_weights.unflatten(0, q.shape[:2])
