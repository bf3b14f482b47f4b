"""The delta rule on NVIDIA GPUs: chunked Triton kernels for `fast_weight_delta`, forward and backward.

Inside a chunk with state S before it, step t writes `k_t (beta_t e_t)^T` with
`e_t = v_t - W_{t-1}^T k_t`. All rows E together solve `(I + Lam diag(beta)) E = V - K S`, where
`Lam = tril(K K^T, -1)`. With `N = (I + Lam diag(beta))^{-1} Lam`, which needs no state and is made
for all chunks in parallel, `E = R - N (beta * R)` for the residual `R = V - K S`, and `S += K^T
(beta * E)`. From there on the rule is the sum rule with `D = beta * E` for the values.

Backward, the gradient dD of what is written gives `Z = dD - N^T (beta * dD)`, the gradient with
respect to `beta * R`. Hence `dV = beta * Z`, `dbeta = Z . E`, and the gradient G of the state runs
backwards over the chunks by `G += Q^T dY - K^T (beta * Z)`. No step divides by beta, which may be 0.

The chunk form is that of Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule
over Sequence Length"; E and the symmetric use of N are chosen so that gradients need no second solve.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from fwp_fairseq.ops import triton_support
from fwp_fairseq.ops.triton_chunks import load_column, load_tile, store_tile
from fwp_fairseq.ops.triton_sum import query_key_gradient, read_chunks, written_gradient


@triton.jit
def solve_kernel(
    k, beta, solved, L, Dk, NT,
    C: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """N of every chunk (see above) by forward substitution, row after row; solved: (B*H, NT, C, C)."""
    chunk = tl.program_id(0).to(tl.int64)
    first = chunk // NT * L + chunk % NT * C
    rows = L - (chunk % NT * C).to(tl.int32)
    gram = tl.zeros((C, C), tl.float32)
    for j in range(0, Dk, BK):
        k_tile = load_tile(k + first * Dk, 0, j, rows, Dk, C, BK)
        gram = tl.dot(k_tile, tl.trans(k_tile), gram, input_precision=PRECISION)
    i = tl.arange(0, C)
    solution = tl.where(i[:, None] > i[None, :], gram, 0.0)
    beta_row = tl.load(beta + first + i, mask=i < rows, other=0.0)
    # Row 0 of Lam is zero and row 1 of N is that of Lam. Rows below the one at hand still hold Lam.
    for row in range(2, C):
        lam = tl.sum(tl.where(i[:, None] == row, solution, 0.0), axis=0)
        weights = tl.where(i < row, lam * beta_row, 0.0)
        update = tl.sum(weights[:, None] * solution, axis=0)
        solution = tl.where(i[:, None] == row, (lam - update)[None, :], solution)
    store_tile(solved + chunk * C * C, solution, 0, 0, C, C, C, C)


@triton.jit
def delta_scan_kernel(
    k, v, beta, solved, states, errors, end, L, Dk, Dv, NT,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, IN_REGISTERS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """E and the state over the chunks. One program: one head, the BV columns of its whole state.

    states holds the initial state as the one before the first chunk, and gets those before the
    others; end gets the last. IN_REGISTERS: BK covers Dk and the state is carried in registers.
    Otherwise it is carried through `states` itself, BK rows at a time; the barrier makes what all
    threads of the program wrote visible to each of them.
    """
    head = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BV
    if IN_REGISTERS:
        state = load_tile(states + head * NT * Dk * Dv, 0, column, Dk, Dv, BK, BV)
    for n in range(NT):
        first = head * L + n * C
        rows = L - n * C
        before = states + (head * NT + n) * Dk * Dv
        after = before + Dk * Dv if n + 1 < NT else end + head * Dk * Dv

        residual = load_tile(v + first * Dv, 0, column, rows, Dv, C, BV)
        if IN_REGISTERS:
            k_tile = load_tile(k + first * Dk, 0, 0, rows, Dk, C, BK)
            residual -= tl.dot(k_tile, state, input_precision=PRECISION)
        else:
            for row in range(0, Dk, BK):
                k_tile = load_tile(k + first * Dk, 0, row, rows, Dk, C, BK)
                tile = load_tile(before, row, column, Dk, Dv, BK, BV)
                residual -= tl.dot(k_tile, tile, input_precision=PRECISION)

        beta_column = load_column(beta + first, rows, C)
        n_tile = load_tile(solved + (head * NT + n) * C * C, 0, 0, C, C, C, C)
        error = residual - tl.dot(n_tile, beta_column * residual, input_precision=PRECISION)
        store_tile(errors + first * Dv, error, 0, column, rows, Dv, C, BV)
        written = beta_column * error

        if IN_REGISTERS:
            state = tl.dot(tl.trans(k_tile), written, state, input_precision=PRECISION)
            store_tile(after, state, 0, column, Dk, Dv, BK, BV)
        else:
            for row in range(0, Dk, BK):
                k_tile = load_tile(k + first * Dk, 0, row, rows, Dk, C, BK)
                tile = load_tile(before, row, column, Dk, Dv, BK, BV)
                tile = tl.dot(tl.trans(k_tile), written, tile, input_precision=PRECISION)
                store_tile(after, tile, row, column, Dk, Dv, BK, BV)
            tl.debug_barrier()


@triton.jit
def delta_reverse_scan_kernel(
    q, k, beta, solved, dout, dwritten, state_grads, z, dstart, L, Dk, Dv, NT,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, IN_REGISTERS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Z and the gradient G of the state from the last chunk to the first, cut as the scan above.

    dwritten holds the part of dD that comes from the chunk's own outputs. state_grads holds G after
    the last chunk and gets those after the others; dstart gets the one before the first.
    """
    head = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BV
    if IN_REGISTERS:
        grad = load_tile(state_grads + (head * NT + NT - 1) * Dk * Dv, 0, column, Dk, Dv, BK, BV)
    for i in range(NT):
        n = NT - 1 - i
        first = head * L + n * C
        rows = L - n * C
        after = state_grads + (head * NT + n) * Dk * Dv
        before = after - Dk * Dv if n > 0 else dstart + head * Dk * Dv

        dwritten_tile = load_tile(dwritten + first * Dv, 0, column, rows, Dv, C, BV)
        if IN_REGISTERS:
            k_tile = load_tile(k + first * Dk, 0, 0, rows, Dk, C, BK)
            dwritten_tile = tl.dot(k_tile, grad, dwritten_tile, input_precision=PRECISION)
        else:
            for row in range(0, Dk, BK):
                k_tile = load_tile(k + first * Dk, 0, row, rows, Dk, C, BK)
                tile = load_tile(after, row, column, Dk, Dv, BK, BV)
                dwritten_tile = tl.dot(k_tile, tile, dwritten_tile, input_precision=PRECISION)

        beta_column = load_column(beta + first, rows, C)
        n_tile = tl.trans(load_tile(solved + (head * NT + n) * C * C, 0, 0, C, C, C, C))
        z_tile = dwritten_tile - tl.dot(n_tile, beta_column * dwritten_tile, input_precision=PRECISION)
        store_tile(z + first * Dv, z_tile, 0, column, rows, Dv, C, BV)
        dresidual = beta_column * z_tile
        dy = load_tile(dout + first * Dv, 0, column, rows, Dv, C, BV)

        if IN_REGISTERS:
            q_tile = load_tile(q + first * Dk, 0, 0, rows, Dk, C, BK)
            grad = tl.dot(tl.trans(q_tile), dy, grad, input_precision=PRECISION)
            grad -= tl.dot(tl.trans(k_tile), dresidual, input_precision=PRECISION)
            store_tile(before, grad, 0, column, Dk, Dv, BK, BV)
        else:
            for row in range(0, Dk, BK):
                q_tile = load_tile(q + first * Dk, 0, row, rows, Dk, C, BK)
                k_tile = load_tile(k + first * Dk, 0, row, rows, Dk, C, BK)
                tile = load_tile(after, row, column, Dk, Dv, BK, BV)
                tile = tl.dot(tl.trans(q_tile), dy, tile, input_precision=PRECISION)
                tile -= tl.dot(tl.trans(k_tile), dresidual, input_precision=PRECISION)
                store_tile(before, tile, row, column, Dk, Dv, BK, BV)
            tl.debug_barrier()


def fast_weight_delta_triton(q, k, v, beta, state=None):
    """`fast_weight_delta` by Triton kernels; same arguments and results, see there.

    The caller has checked shapes and that `why_not_triton(q, k, v)` is None.
    """
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    out, new_state = _TritonDelta.apply(q.to(dtype), k.to(dtype), v.to(dtype), beta.float(), state)
    return out.to(v.dtype), new_state


class _TritonDelta(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, beta, state):
        q, k, v, beta = q.contiguous(), k.contiguous(), v.contiguous(), beta.contiguous()
        tiles = triton_support.choose_tiles(q, v)
        with torch.cuda.device_of(q):
            solved = _solve(k, beta, tiles)
            states, errors, end = _scan(k, v, beta, solved, state, tiles)
            out = read_chunks(q, k, errors, beta, states, tiles)
        ctx.save_for_backward(q, k, beta, solved, states, errors)
        ctx.tiles = tiles
        return out, end

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, dend):
        q, k, beta, solved, states, errors = ctx.saved_tensors
        dout = dout.contiguous()
        dwritten = torch.empty_like(errors)
        dv, dbeta = torch.empty_like(dout), torch.empty_like(beta)
        with torch.cuda.device_of(q):
            written_gradient(q, k, dout, None, dwritten, ctx.tiles)
            state_grads, z, dstate = _reverse_scan(q, k, beta, solved, dout, dwritten, dend, ctx.tiles)
            dq, dk = query_key_gradient(
                q, k, errors, beta, z, dout, states, state_grads, dv, dbeta, ctx.tiles
            )
        return dq, dk, dv, dbeta, dstate if ctx.needs_input_grad[4] else None


def _solve(k, beta, tiles):
    batch, heads, length, key_dim = k.shape
    chunks = triton.cdiv(length, tiles.C)
    solved = k.new_empty(batch, heads, chunks, tiles.C, tiles.C, dtype=torch.float32)
    triton_support.launch(
        solve_kernel,
        (batch * heads * chunks,),
        k, beta, solved, length, key_dim, chunks,
        C=tiles.C, BK=tiles.BK, PRECISION=tiles.precision, num_warps=4, num_stages=2,
    )  # fmt: skip
    return solved


def _scan(k, v, beta, solved, start, tiles):
    """(states, errors, end): the state before each chunk, E, and the state after the last chunk."""
    states = _state_per_chunk(k, v, solved)
    states[:, :, 0] = 0 if start is None else start
    errors = torch.empty_like(v, dtype=torch.float32)
    end = torch.empty_like(states[:, :, 0], memory_format=torch.contiguous_format)
    _launch_scan(delta_scan_kernel, k, v, beta, solved, states, errors, end, k=k, v=v, tiles=tiles)
    return states, errors, end


def _reverse_scan(q, k, beta, solved, dout, dwritten, dend, tiles):
    """(state_grads, z, dstart): G after each chunk, Z, and the initial state's gradient."""
    state_grads = _state_per_chunk(k, dout, solved)
    state_grads[:, :, -1] = dend
    z = torch.empty_like(dwritten)
    dstart = torch.empty_like(state_grads[:, :, 0], memory_format=torch.contiguous_format)
    tensors = (q, k, beta, solved, dout, dwritten, state_grads, z, dstart)
    _launch_scan(delta_reverse_scan_kernel, *tensors, k=k, v=dout, tiles=tiles)
    return state_grads, z, dstart


def _state_per_chunk(k, v, solved):
    return k.new_empty(*solved.shape[:3], k.shape[-1], v.shape[-1], dtype=torch.float32)


def _launch_scan(kernel, *tensors, k, v, tiles):
    batch, heads, length, key_dim = k.shape
    value_dim = v.shape[-1]
    triton_support.launch(
        kernel,
        (batch * heads, triton.cdiv(value_dim, tiles.SV)),
        *tensors, length, key_dim, value_dim, triton.cdiv(length, tiles.C),
        C=tiles.C, BK=tiles.SK, BV=tiles.SV, IN_REGISTERS=tiles.SK >= key_dim,
        PRECISION=tiles.precision, num_warps=4, num_stages=1,
    )  # fmt: skip
