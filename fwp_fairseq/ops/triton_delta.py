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
        update = tl.sum(tl.sum(tl.where(i[:, None] == i[None, :], weights[None, :], 0.0), axis=1)[:, None] * solution, axis=0)
        solution = tl.where(i[:, None] == row, (lam - update)[None, :], solution)
    store_tile(solved + chunk * C * C, solution, 0, 0, C, C, C, C)


@triton.jit
def delta_scan_kernel(
    k, v, beta, solved, start, states, errors, end, L, Dk, Dv, NT,
    C: tl.constexpr, BK: tl.constexpr, NK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """E and the state over the chunks. One program: one head, the BV columns of its whole state.

    states gets S as it was before each chunk, end the last one; start may be None. The state is NK
    tiles of BK x BV in registers: one large tile would need Dk x C keys in shared memory at once.
    """
    head = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BV
    state = ()
    for b in tl.static_range(NK):
        tile = tl.zeros((BK, BV), tl.float32)
        if start is not None:
            tile += load_tile(start + head * Dk * Dv, b * BK, column, Dk, Dv, BK, BV)
        state = state + (tile,)
    for n in range(NT):
        first = head * L + n * C
        rows = L - n * C
        residual = load_tile(v + first * Dv, 0, column, rows, Dv, C, BV)
        for b in tl.static_range(NK):
            store_tile(states + (head * NT + n) * Dk * Dv, state[b], b * BK, column, Dk, Dv, BK, BV)
            k_tile = load_tile(k + first * Dk, 0, b * BK, rows, Dk, C, BK)
            residual -= tl.dot(k_tile, state[b], input_precision=PRECISION)
        beta_column = load_column(beta + first, rows, C)
        n_tile = load_tile(solved + (head * NT + n) * C * C, 0, 0, C, C, C, C)
        error = residual - tl.dot(n_tile, beta_column * residual, input_precision=PRECISION)
        store_tile(errors + first * Dv, error, 0, column, rows, Dv, C, BV)
        written = beta_column * error
        new_state = ()
        for b in tl.static_range(NK):
            k_tile = load_tile(k + first * Dk, 0, b * BK, rows, Dk, C, BK)
            new_state = new_state + (tl.dot(tl.trans(k_tile), written, state[b], input_precision=PRECISION),)
        state = new_state
    for b in tl.static_range(NK):
        store_tile(end + head * Dk * Dv, state[b], b * BK, column, Dk, Dv, BK, BV)


@triton.jit
def delta_reverse_scan_kernel(
    q, k, beta, solved, dout, dwritten, dend, state_grads, z, dstart, L, Dk, Dv, NT,
    C: tl.constexpr, BK: tl.constexpr, NK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Z and the gradient G of the state from the last chunk to the first.

    dwritten holds the part of dD that comes from the chunk's own outputs; state_grads gets G with
    respect to the state after each chunk, dstart the one before the first.
    """
    head = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BV
    grad = ()
    for b in tl.static_range(NK):
        grad = grad + (load_tile(dend + head * Dk * Dv, b * BK, column, Dk, Dv, BK, BV),)
    for i in range(NT):
        n = NT - 1 - i
        first = head * L + n * C
        rows = L - n * C
        dwritten_tile = load_tile(dwritten + first * Dv, 0, column, rows, Dv, C, BV)
        for b in tl.static_range(NK):
            store_tile(state_grads + (head * NT + n) * Dk * Dv, grad[b], b * BK, column, Dk, Dv, BK, BV)
            k_tile = load_tile(k + first * Dk, 0, b * BK, rows, Dk, C, BK)
            dwritten_tile = tl.dot(k_tile, grad[b], dwritten_tile, input_precision=PRECISION)
        beta_column = load_column(beta + first, rows, C)
        n_tile = load_tile(solved + (head * NT + n) * C * C, 0, 0, C, C, C, C)
        z_tile = dwritten_tile - tl.dot(
            tl.trans(n_tile), beta_column * dwritten_tile, input_precision=PRECISION
        )
        store_tile(z + first * Dv, z_tile, 0, column, rows, Dv, C, BV)
        dresidual = beta_column * z_tile
        dy = load_tile(dout + first * Dv, 0, column, rows, Dv, C, BV)
        new_grad = ()
        for b in tl.static_range(NK):
            q_tile = load_tile(q + first * Dk, 0, b * BK, rows, Dk, C, BK)
            k_tile = load_tile(k + first * Dk, 0, b * BK, rows, Dk, C, BK)
            tile = tl.dot(tl.trans(q_tile), dy, grad[b], input_precision=PRECISION)
            tile -= tl.dot(tl.trans(k_tile), dresidual, input_precision=PRECISION)
            new_grad = new_grad + (tile,)
        grad = new_grad
    for b in tl.static_range(NK):
        store_tile(dstart + head * Dk * Dv, grad[b], b * BK, column, Dk, Dv, BK, BV)


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
        state = None if state is None else state.float().contiguous()
        with torch.cuda.device_of(q):
            solved = _solve(k, beta, v.shape[-1])
            states, errors, end = _scan(k, v, beta, solved, state)
            out = read_chunks(q, k, errors, beta, states)
        ctx.save_for_backward(q, k, beta, solved, states, errors)
        return out, end

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, dend):
        q, k, beta, solved, states, errors = ctx.saved_tensors
        dout, dend = dout.contiguous(), dend.contiguous()
        dwritten = torch.empty_like(errors)
        dv, dbeta = torch.empty_like(dout), torch.empty_like(beta)
        with torch.cuda.device_of(q):
            written_gradient(q, k, dout, None, dwritten)
            state_grads, z, dstate = _reverse_scan(q, k, beta, solved, dout, dwritten, dend)
            dq, dk = query_key_gradient(q, k, errors, beta, z, dout, states, state_grads, dv, dbeta)
        return dq, dk, dv, dbeta, dstate if ctx.needs_input_grad[4] else None


def _solve(k, beta, value_dim):
    batch, heads, length, key_dim = k.shape
    tiles = triton_support.choose_tiles(length, key_dim, value_dim)
    chunks = triton.cdiv(length, tiles.C)
    solved = k.new_empty(batch, heads, chunks, tiles.C, tiles.C, dtype=torch.float32)
    triton_support.launch(
        solve_kernel,
        (batch * heads * chunks,),
        k, beta, solved, length, key_dim, chunks,
        C=tiles.C, BK=tiles.BK, PRECISION=triton_support.dot_precision(k.dtype), num_warps=4, num_stages=2,
    )  # fmt: skip
    return solved


def _scan(k, v, beta, solved, start):
    states, end = _state_buffers(k, v, solved.shape[2])
    errors = torch.empty_like(v, dtype=torch.float32)
    _launch_scan(delta_scan_kernel, k, v, beta, solved, start, states, errors, end, k=k, v=v)
    return states, errors, end


def _reverse_scan(q, k, beta, solved, dout, dwritten, dend):
    state_grads, dstart = _state_buffers(k, dout, solved.shape[2])
    z = torch.empty_like(dwritten)
    tensors = (q, k, beta, solved, dout, dwritten, dend, state_grads, z, dstart)
    _launch_scan(delta_reverse_scan_kernel, *tensors, k=k, v=dout)
    return state_grads, z, dstart


def _state_buffers(k, v, chunks):
    batch, heads, _, key_dim = k.shape
    states = k.new_empty(batch, heads, chunks, key_dim, v.shape[-1], dtype=torch.float32)
    return states, k.new_empty(batch, heads, key_dim, v.shape[-1], dtype=torch.float32)


def _launch_scan(kernel, *tensors, k, v):
    batch, heads, length, key_dim = k.shape
    tiles = triton_support.choose_tiles(length, key_dim, v.shape[-1])
    triton_support.launch(
        kernel,
        (batch * heads, triton.cdiv(v.shape[-1], tiles.SV)),
        *tensors, length, key_dim, v.shape[-1], triton.cdiv(length, tiles.C),
        C=tiles.C, BK=tiles.BK, NK=tiles.NK, BV=tiles.SV,
        PRECISION=triton_support.dot_precision(k.dtype), num_warps=4, num_stages=2,
    )  # fmt: skip
