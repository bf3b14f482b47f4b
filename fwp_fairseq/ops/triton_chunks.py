"""Triton kernels that run in parallel over the chunks, shared by the sum rule and the delta rule.

Both rules write `W += K^T D` over a chunk, with D the values (sum rule) or what the delta rule
writes, `D = beta * E`. Given the state S before each chunk (and, backward, the gradient G with
respect to the state after it), every chunk is independent. One program is one chunk of one head;
program axis 0 counts both together, because a CUDA grid's other axes end at 65,535.

Tensors are contiguous: q, k (B*H, L, Dk); v, out (B*H, L, Dv); states (B*H, NT, Dk, Dv) for NT
chunks. Offsets that grow with B*H or L are int64, offsets inside a tile int32.
"""

import triton
import triton.language as tl


@triton.jit
def load_tile(base, row, column, rows, columns, R: tl.constexpr, C: tl.constexpr):
    """The R x C tile at (row, column) of a (rows, columns) matrix, in float32, zero outside."""
    i = row + tl.arange(0, R)[:, None]
    j = column + tl.arange(0, C)[None, :]
    return tl.load(base + i * columns + j, mask=(i < rows) & (j < columns), other=0.0).to(tl.float32)


@triton.jit
def store_tile(base, tile, row, column, rows, columns, R: tl.constexpr, C: tl.constexpr):
    i = row + tl.arange(0, R)[:, None]
    j = column + tl.arange(0, C)[None, :]
    tl.store(base + i * columns + j, tile.to(base.dtype.element_ty), mask=(i < rows) & (j < columns))


@triton.jit
def load_column(base, rows, R: tl.constexpr):
    """The first R numbers of a vector of `rows` as an R x 1 column in float32, zero outside."""
    i = tl.arange(0, R)
    return tl.load(base + i, mask=i < rows, other=0.0).to(tl.float32)[:, None]


@triton.jit
def lower_triangle(matrix, C: tl.constexpr):
    """The C x C matrix with everything above its diagonal set to zero."""
    i = tl.arange(0, C)
    return tl.where(i[:, None] >= i[None, :], matrix, 0.0)


@triton.jit
def output_kernel(
    q, k, v, beta, states, out, L, Dk, Dv, NT,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`Y = Q S + tril(Q K^T) D`. D is v (beta is None), or beta * v with v holding the delta rule's E."""
    chunk = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BV
    first = chunk // NT * L + chunk % NT * C
    rows = L - (chunk % NT * C).to(tl.int32)
    q += first * Dk
    k += first * Dk
    states += chunk * Dk * Dv

    scores = tl.zeros((C, C), tl.float32)
    y = tl.zeros((C, BV), tl.float32)
    for j in range(0, Dk, BK):
        q_tile = load_tile(q, 0, j, rows, Dk, C, BK)
        k_tile = load_tile(k, 0, j, rows, Dk, C, BK)
        state = load_tile(states, j, column, Dk, Dv, BK, BV)
        scores = tl.dot(q_tile, tl.trans(k_tile), scores, input_precision=PRECISION)
        y = tl.dot(q_tile, state, y, input_precision=PRECISION)
    written = load_tile(v + first * Dv, 0, column, rows, Dv, C, BV)
    if beta is not None:
        written *= load_column(beta + first, rows, C)
    y = tl.dot(lower_triangle(scores, C), written, y, input_precision=PRECISION)
    store_tile(out + first * Dv, y, 0, column, rows, Dv, C, BV)


@triton.jit
def written_gradient_kernel(
    q, k, dout, state_grads, dwritten, L, Dk, Dv, NT,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`dD = K G + tril(Q K^T)^T dY`, the gradient of what the chunk writes.

    state_grads is None: only the second term (the delta rule's reverse scan adds the first).
    """
    chunk = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BV
    first = chunk // NT * L + chunk % NT * C
    rows = L - (chunk % NT * C).to(tl.int32)
    q += first * Dk
    k += first * Dk

    scores = tl.zeros((C, C), tl.float32)
    grad = tl.zeros((C, BV), tl.float32)
    for j in range(0, Dk, BK):
        q_tile = load_tile(q, 0, j, rows, Dk, C, BK)
        k_tile = load_tile(k, 0, j, rows, Dk, C, BK)
        scores = tl.dot(q_tile, tl.trans(k_tile), scores, input_precision=PRECISION)
        if state_grads is not None:
            state_grad = load_tile(state_grads + chunk * Dk * Dv, j, column, Dk, Dv, BK, BV)
            grad = tl.dot(k_tile, state_grad, grad, input_precision=PRECISION)
    dy = load_tile(dout + first * Dv, 0, column, rows, Dv, C, BV)
    grad = tl.dot(tl.trans(lower_triangle(scores, C)), dy, grad, input_precision=PRECISION)
    store_tile(dwritten + first * Dv, grad, 0, column, rows, Dv, C, BV)


@triton.jit
def query_key_gradient_kernel(
    q, k, v, beta, z, dout, states, state_grads, dq, dk, dv, dbeta, L, Dk, Dv, NT,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of q and k, and the delta rule's of v and beta, for one key tile of one chunk.

    With P = tril(dY D^T): `dQ = dY S^T + P K` and `dK = D G^T + P^T Q`. For the delta rule (beta is
    not None) v holds E and z the gradient Z with respect to beta * residual, as in
    `triton_delta.py`; with dR = beta * Z and F = tril(dR D^T, -1) k also gets
    `-dR S^T - (F + F^T) K`, and `dV = dR`, `dbeta = Z . E`.
    """
    chunk = tl.program_id(0).to(tl.int64)
    key_column = tl.program_id(1) * BK
    first = chunk // NT * L + chunk % NT * C
    rows = L - (chunk % NT * C).to(tl.int32)
    states += chunk * Dk * Dv
    state_grads += chunk * Dk * Dv

    dq_tile = tl.zeros((C, BK), tl.float32)
    dk_tile = tl.zeros((C, BK), tl.float32)
    dscores = tl.zeros((C, C), tl.float32)
    if beta is not None:
        beta_column = load_column(beta + first, rows, C)
        dgram = tl.zeros((C, C), tl.float32)
        dbeta_row = tl.zeros((C,), tl.float32)
    for j in range(0, Dv, BV):
        dy = load_tile(dout + first * Dv, 0, j, rows, Dv, C, BV)
        written = load_tile(v + first * Dv, 0, j, rows, Dv, C, BV)
        state = tl.trans(load_tile(states, key_column, j, Dk, Dv, BK, BV))
        state_grad = tl.trans(load_tile(state_grads, key_column, j, Dk, Dv, BK, BV))
        if beta is not None:
            z_tile = load_tile(z + first * Dv, 0, j, rows, Dv, C, BV)
            dbeta_row += tl.sum(z_tile * written, axis=1)
            written *= beta_column
            dresidual = z_tile * beta_column
            if key_column == 0:
                store_tile(dv + first * Dv, dresidual, 0, j, rows, Dv, C, BV)
            dk_tile -= tl.dot(dresidual, state, input_precision=PRECISION)
            dgram = tl.dot(dresidual, tl.trans(written), dgram, input_precision=PRECISION)
        dq_tile = tl.dot(dy, state, dq_tile, input_precision=PRECISION)
        dk_tile = tl.dot(written, state_grad, dk_tile, input_precision=PRECISION)
        dscores = tl.dot(dy, tl.trans(written), dscores, input_precision=PRECISION)

    q_tile = load_tile(q + first * Dk, 0, key_column, rows, Dk, C, BK)
    k_tile = load_tile(k + first * Dk, 0, key_column, rows, Dk, C, BK)
    dscores = lower_triangle(dscores, C)
    dq_tile = tl.dot(dscores, k_tile, dq_tile, input_precision=PRECISION)
    dk_tile = tl.dot(tl.trans(dscores), q_tile, dk_tile, input_precision=PRECISION)
    if beta is not None:
        i = tl.arange(0, C)
        dgram = tl.where(i[:, None] > i[None, :], dgram, 0.0)
        dk_tile -= tl.dot(dgram + tl.trans(dgram), k_tile, input_precision=PRECISION)
        if key_column == 0:
            tl.store(dbeta + first + i, dbeta_row, mask=i < rows)
    store_tile(dq + first * Dk, dq_tile, 0, key_column, rows, Dk, C, BK)
    store_tile(dk + first * Dk, dk_tile, 0, key_column, rows, Dk, C, BK)
