"""The sum rule on NVIDIA GPUs: chunked Triton kernels for `fast_weight_sum`, forward and backward.

Forward: a scan over the chunks keeps the state before each chunk, then all chunks read in parallel.
Backward: the same scan in reverse with q for k and dY for v gives the gradient G with respect to the
state after each chunk, and the chunks are independent again.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from fwp_fairseq.ops import triton_support
from fwp_fairseq.ops.triton_chunks import (
    load_tile,
    output_kernel,
    query_key_gradient_kernel,
    store_tile,
    written_gradient_kernel,
)


@triton.jit
def sum_scan_kernel(
    k, v, start, states, end, L, Dk, Dv, NT,
    REVERSE: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`S += K^T V` over the chunks, in order or REVERSE. One program: one head, one BK x BV piece of S.

    states gets S as it was before each chunk was added, end what remains after all; start may be None.
    """
    head = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BK
    column = tl.program_id(2) * BV
    state = tl.zeros((BK, BV), tl.float32)
    if start is not None:
        state += load_tile(start + head * Dk * Dv, row, column, Dk, Dv, BK, BV)
    for i in range(NT):
        n = NT - 1 - i if REVERSE else i
        store_tile(states + (head * NT + n) * Dk * Dv, state, row, column, Dk, Dv, BK, BV)
        first = head * L + n * C
        k_tile = load_tile(k + first * Dk, 0, row, L - n * C, Dk, C, BK)
        v_tile = load_tile(v + first * Dv, 0, column, L - n * C, Dv, C, BV)
        state = tl.dot(tl.trans(k_tile), v_tile, state, input_precision=PRECISION)
    store_tile(end + head * Dk * Dv, state, row, column, Dk, Dv, BK, BV)


def fast_weight_sum_triton(q, k, v, state=None):
    """`fast_weight_sum` by Triton kernels; same arguments and results, see there.

    The caller has checked shapes and that `why_not_triton(q, k, v)` is None.
    """
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    out, new_state = _TritonSum.apply(q.to(dtype), k.to(dtype), v.to(dtype), state)
    return out.to(v.dtype), new_state


class _TritonSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, state):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        state = None if state is None else state.float().contiguous()
        tiles = triton_support.choose_tiles(q, v)
        with torch.cuda.device_of(q):
            states, end = _scan(k, v, state, tiles, reverse=False)
            out = read_chunks(q, k, v, None, states, tiles)
        ctx.save_for_backward(q, k, v, states)
        ctx.tiles = tiles
        return out, end

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, dend):
        q, k, v, states = ctx.saved_tensors
        dout, dend = dout.contiguous(), dend.contiguous()
        dv = torch.empty_like(v)
        with torch.cuda.device_of(q):
            state_grads, dstate = _scan(q, dout, dend, ctx.tiles, reverse=True)
            written_gradient(q, k, dout, state_grads, dv, ctx.tiles)
            dq, dk = query_key_gradient(
                q, k, v, None, None, dout, states, state_grads, None, None, ctx.tiles
            )
        return dq, dk, dv, dstate if ctx.needs_input_grad[3] else None


def _scan(k, v, start, tiles, reverse):
    """(states, end): the state before each chunk (B, H, NT, Dk, Dv), and after the last; float32."""
    batch, heads, length, key_dim = k.shape
    value_dim = v.shape[-1]
    chunks = triton.cdiv(length, tiles.C)
    states = k.new_empty(batch, heads, chunks, key_dim, value_dim, dtype=torch.float32)
    end = k.new_empty(batch, heads, key_dim, value_dim, dtype=torch.float32)
    triton_support.launch(
        sum_scan_kernel,
        (batch * heads, triton.cdiv(key_dim, tiles.BK), triton.cdiv(value_dim, tiles.SV)),
        k, v, start, states, end, length, key_dim, value_dim, chunks,
        REVERSE=reverse, C=tiles.C, BK=tiles.BK, BV=tiles.SV,
        PRECISION=tiles.precision, num_warps=4, num_stages=2,
    )  # fmt: skip
    return states, end


def read_chunks(q, k, v, beta, states, tiles):
    """The outputs (B, H, L, Dv) in q's dtype, from the state before each chunk."""
    out = torch.empty_like(v, dtype=q.dtype)
    columns = triton.cdiv(v.shape[-1], tiles.BV)
    _launch_chunks(output_kernel, columns, q, k, v, beta, states, out, q=q, v=v, tiles=tiles)
    return out


def written_gradient(q, k, dout, state_grads, dwritten, tiles):
    """Fills dwritten (B, H, L, Dv); `written_gradient_kernel` says with what."""
    columns = triton.cdiv(dout.shape[-1], tiles.BV)
    tensors = (q, k, dout, state_grads, dwritten)
    _launch_chunks(written_gradient_kernel, columns, *tensors, q=q, v=dout, tiles=tiles)


def query_key_gradient(q, k, v, beta, z, dout, states, state_grads, dv, dbeta, tiles):
    """(dq, dk); fills dv and dbeta too when beta is given."""
    dq, dk = torch.empty_like(q), torch.empty_like(k)
    # Four accumulators, two of them C x C: with wider tiles, or fewer threads for the longest chunks,
    # sm_80 runs out of registers.
    tiles = replace(tiles, BK=min(tiles.BK, 32), BV=16)
    columns = triton.cdiv(q.shape[-1], tiles.BK)
    tensors = (q, k, v, beta, z, dout, states, state_grads, dq, dk, dv, dbeta)
    num_warps = 8 if tiles.C == 64 else 4
    _launch_chunks(
        query_key_gradient_kernel, columns, *tensors, q=q, v=v, tiles=tiles, num_warps=num_warps
    )
    return dq, dk


def _launch_chunks(kernel, columns, *tensors, q, v, tiles, num_warps=4):
    """Start a kernel of `triton_chunks.py`: one program for each chunk of each head and each column tile."""
    batch, heads, length, key_dim = q.shape
    chunks = triton.cdiv(length, tiles.C)
    triton_support.launch(
        kernel,
        (batch * heads * chunks, columns),
        *tensors, length, key_dim, v.shape[-1], chunks,
        C=tiles.C, BK=tiles.BK, BV=tiles.BV,
        PRECISION=tiles.precision, num_warps=num_warps, num_stages=2,
    )  # fmt: skip
