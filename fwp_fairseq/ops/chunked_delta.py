"""The delta rule in chunks, in plain torch, with an explicit backward: linear in L.

The C steps of a chunk depend on each other through a C x C triangular system only (Yang et al. 2024,
"Parallelizing Linear Transformers with the Delta Rule over Sequence Length"), so a chunk is a handful
of matrix products, and chunks are chained by their state. With the write keys ``A = diag(beta) K``
and the state ``W`` at the start of the chunk:

    (I + tril(K A^T, -1)) E = V - K W             E: the differences that are written
    Y = Q W + tril(Q A^T) E
    W <- W + A^T E

Queries and keys read the state alike, so they go through the products as one matrix ``X = [Q; K]``.
"""

import torch
from torch.autograd.function import once_differentiable

from fwp_fairseq.ops.chunks import cut_into_spans
from fwp_fairseq.ops.feature_maps import accumulation_dtype


def chunked_delta(q, k, v, beta, state, chunk=None):
    """``(out, new_state)`` of the delta rule; ``state: (B, H, Dk, Dv)`` in float32 or float64."""
    chunk = chunk or chunk_length(q.shape[-1], v.shape[-1])
    inputs = (q, k, v, beta, state)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        return _ChunkedDelta.apply(*inputs, chunk)
    return _forward(*inputs, chunk)


def delta_of_one_chunk(q, k, v, beta):
    """``(out, new_state)`` of a sequence that is no longer than a chunk and starts from zeros, which nothing reads."""
    dtype = accumulation_dtype(q)
    with torch.autocast(v.device.type, enabled=False):
        queries, keys, values, strength = (x.to(dtype) for x in (q, k, v, beta))
        write_keys = keys * strength.unsqueeze(-1)
        triangle = keys @ write_keys.mT  # of which only what is below the diagonal is read
        differences = torch.linalg.solve_triangular(triangle, values, upper=False, unitriangular=True)
        return ((queries @ write_keys.mT).tril() @ differences).to(v.dtype), write_keys.mT @ differences


def chunk_length(key_size, value_size):
    """Steps per chunk: the larger the heads, the more work a chunk may do within itself."""
    largest = max(key_size, value_size)
    return 16 if largest <= 16 else 32 if largest <= 128 else 64


class _ChunkedDelta(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, beta, state, chunk):
        written = torch.empty(v.shape, dtype=state.dtype, device=v.device)
        span_states = []
        out, new_state = _forward(q, k, v, beta, state, chunk, written, span_states)
        # Of the rest the backward recomputes what is cheap: all of size L x C.
        ctx.save_for_backward(q, k, beta, written, *span_states)
        ctx.chunk, ctx.v_dtype = chunk, v.dtype
        return out, new_state

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_state):
        return *_backward(ctx, grad_out, grad_state), None


def _spans(q, v, chunk):
    heads, (key_size, value_size) = q.shape[0] * q.shape[1], (q.shape[-1], v.shape[-1])
    per_step = 3 * key_size + 4 * value_size + 2 * chunk
    return cut_into_spans(q.shape[2], chunk, heads * (chunk * per_step + key_size * value_size))


def _load_keys(span, q, k, beta, dtype):
    """``X``, ``A``, ``tril(Q A^T)`` and ``K A^T``, flat over chunks and heads."""
    x = span.load_stacked(q, k, dtype)
    queries, keys = x[:, : span.chunk], x[:, span.chunk :]
    write_keys = keys * span.load(beta, dtype).unsqueeze(-1)
    scores = torch.bmm(queries, write_keys.mT).tril_()
    return x, write_keys, scores, torch.bmm(keys, write_keys.mT)


def _forward(q, k, v, beta, state, chunk, written=None, span_states=None):
    """Fills ``written`` and ``span_states``, which the backward needs, where they are given."""
    with torch.autocast(v.device.type, enabled=False):
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        weights = state.flatten(0, 1)
        for span in _spans(q, v, chunk):
            x, write_keys, scores, triangles = _load_keys(span, q, k, beta, state.dtype)
            differences = span.load(v, state.dtype)
            states = differences.new_empty(span.count + 1, *weights.shape)
            states[0] = weights
            per_chunk = span.chunks_of(x, write_keys, triangles, differences)
            for i, (x_i, a_i, triangle, e_i) in enumerate(per_chunk):
                e_i.baddbmm_(x_i[:, span.chunk :], states[i], alpha=-1)
                _solve_in_place(triangle, e_i, upper=False)
                torch.baddbmm(states[i], a_i.mT, e_i, out=states[i + 1])
            y = torch.bmm(x[:, : span.chunk], states[:-1].flatten(0, 1))
            span.store(y.baddbmm_(scores, differences), out)
            weights = states[-1]
            if written is not None:
                span.store(differences, written)
                span_states.append(states[:-1])
        return out, weights.clone().unflatten(0, state.shape[:2])


def _backward(ctx, grad_out, grad_state):
    q, k, beta, written, *span_states = ctx.saved_tensors
    dtype = written.dtype
    grad_q, grad_k, grad_beta = (
        torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, beta)
    )
    grad_v = torch.empty(written.shape, dtype=ctx.v_dtype, device=written.device)
    grad_weights = grad_state.flatten(0, 1)
    with torch.autocast(q.device.type, enabled=False):
        spans = _spans(q, written, ctx.chunk)
        for span, states in zip(reversed(spans), reversed(span_states)):
            chunk = span.chunk
            x, write_keys, scores, triangles = _load_keys(span, q, k, beta, dtype)
            differences = span.load(written, dtype)
            # [dY; -dV], the gradients of what X reads from the state; the scan fills in -dV.
            reads = span.load_stacked(grad_out, None, dtype)
            grad_values = torch.bmm(scores.mT, reads[:, :chunk])
            grad_states = states.new_empty(span.count + 1, *grad_weights.shape)
            grad_states[-1] = grad_weights
            per_chunk = span.chunks_of(x, write_keys, triangles, reads, grad_values)
            for i, (x_i, a_i, triangle, reads_i, e_i) in reversed([*enumerate(per_chunk)]):
                e_i.baddbmm_(a_i, grad_states[i + 1])
                _solve_in_place(triangle.mT, e_i, upper=True)
                torch.neg(e_i, out=reads_i[:, chunk:])
                torch.baddbmm(grad_states[i + 1], x_i.mT, reads_i, out=grad_states[i])
            grad_weights = grad_states[0]

            grad_scores = torch.bmm(reads, differences.mT)
            grad_scores[:, :chunk].tril_()
            grad_scores[:, chunk:].tril_(-1)
            grad_x = torch.bmm(reads, states.flatten(0, 1).mT).baddbmm_(grad_scores, write_keys)
            grad_a = torch.bmm(differences, grad_states[1:].flatten(0, 1).mT)
            grad_a.baddbmm_(grad_scores.mT, x)

            span.store(grad_x[:, :chunk], grad_q)
            span.store(grad_values, grad_v)
            span.store((grad_a * x[:, chunk:]).sum(-1), grad_beta)
            grad_a.mul_(span.load(beta, dtype).unsqueeze(-1)).add_(grad_x[:, chunk:])
            span.store(grad_a, grad_k)
        return grad_q, grad_k, grad_v, grad_beta, grad_weights.unflatten(0, q.shape[:2])


def _solve_in_place(triangle, right, upper):
    # Substitution like the recurrence itself: an explicit inverse can overflow where this does not.
    # The other triangle and the diagonal are not read, so they need no masking.
    torch.linalg.solve_triangular(triangle, right, upper=upper, unitriangular=True, out=right)
