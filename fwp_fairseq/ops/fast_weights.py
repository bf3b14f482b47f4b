"""The fast weight rules with their choice of backend: what models call.

``out, state = fast_weight_delta(q, k, v, beta)`` over a whole sequence, and
``out, state = fast_weight_step(state, q, k, v, beta)`` for one step of decoding. ``reference`` is the
step-by-step specification, ``torch`` runs in chunks on any device, ``triton`` on NVIDIA GPUs.
"""

import logging

import torch

from fwp_fairseq.ops import chunked_delta, chunked_sum
from fwp_fairseq.ops.feature_maps import accumulation_dtype
from fwp_fairseq.ops.reference import fast_weight_delta_reference, fast_weight_sum_reference
from fwp_fairseq.ops.triton_support import why_not_triton
from fwp_fairseq.ops.validation import check_inputs, check_state

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "reference", "torch", "triton")
_AXES = "B, H, L"


@torch.compiler.disable
def fast_weight_sum(q, k, v, state=None, backend="auto"):
    """The sum rule ``W_t = W_{t-1} + k_t v_t^T`` read by ``y_t = W_t^T q_t`` (section 3.1, eq. 17).

    Args:
        q, k: queries and keys after the feature map, ``(B, H, L, Dk)``, any ``L >= 1``.
        v: values, ``(B, H, L, Dv)``.
        state: ``W_0``, ``(B, H, Dk, Dv)`` in float32 (float64 for float64 inputs); zeros if None.
        backend: one of ``BACKENDS``; ``auto`` is ``triton`` where it can run, else ``torch``.

    Inputs are float32, float64, bfloat16 or float16, computed in the dtype of the state. Returns
    ``(out, W_L)``, ``out: (B, H, L, Dv)`` in the dtype of ``v``; both are differentiable with
    respect to all inputs and the state (once, but for ``reference``). Raises ``ValueError`` where a
    shape, dtype, device or the backend does not fit.
    """
    check_inputs(_AXES, q, k, v)
    backend = _choose_backend(backend, q, k, v)
    if state is None and backend == "torch" and q.shape[2] <= chunked_sum.chunk_length(q.shape[-1], v.shape[-1]):
        return chunked_sum.sum_of_one_chunk(q, k, v)
    state = _initial_state(q, v, state)
    if backend == "triton":
        from fwp_fairseq.ops.triton_sum import fast_weight_sum_triton

        return fast_weight_sum_triton(q, k, v, state)
    rule = chunked_sum.chunked_sum if backend == "torch" else fast_weight_sum_reference
    return rule(q, k, v, state)


@torch.compiler.disable
def fast_weight_delta(q, k, v, beta, state=None, backend="auto"):
    """The delta rule ``W_t = W_{t-1} + beta_t k_t (v_t - W_{t-1}^T k_t)^T`` (section 4.2, eq. 24).

    ``beta``, ``(B, H, L)``, is the write strength: usually in [0, 1], but any value works.
    Everything else is as for ``fast_weight_sum``.
    """
    check_inputs(_AXES, q, k, v, beta=beta)
    backend = _choose_backend(backend, q, k, v)
    if state is None and backend == "torch" and q.shape[2] <= chunked_delta.chunk_length(q.shape[-1], v.shape[-1]):
        return chunked_delta.delta_of_one_chunk(q, k, v, beta)
    state = _initial_state(q, v, state)
    if backend == "triton":
        from fwp_fairseq.ops.triton_delta import fast_weight_delta_triton

        return fast_weight_delta_triton(q, k, v, beta, state)
    rule = chunked_delta.chunked_delta if backend == "torch" else fast_weight_delta_reference
    return rule(q, k, v, beta, state)


def fast_weight_step(state, q, k, v, beta=None, in_place=False):
    """One step of the sum rule (``beta=None``) or the delta rule, for decoding.

    ``q, k: (B, H, Dk)``, ``v: (B, H, Dv)``, ``beta: (B, H)``, ``state: (B, H, Dk, Dv)``, dtypes as
    for ``fast_weight_sum``. Time and memory do not depend on how much was generated before. Returns
    ``(out, state)`` with ``out: (B, H, Dv)``; ``in_place`` writes into the state that was given.
    """
    check_inputs("B, H", q, k, v, **({} if beta is None else {"beta": beta}))
    check_state("state", state, (*q.shape, v.shape[-1]), q)
    out_dtype = v.dtype
    q, k, v = (x.to(state.dtype) for x in (q, k, v))
    with torch.autocast(v.device.type, enabled=False):
        if beta is not None:
            removed = (k.unsqueeze(-2) @ state).squeeze(-2)
            v = beta.to(state.dtype).unsqueeze(-1) * (v - removed)
        key, value = k.unsqueeze(-1), v.unsqueeze(-2)
        state = state.addcmul_(key, value) if in_place else torch.addcmul(state, key, value)
        return (q.unsqueeze(-2) @ state).squeeze(-2).to(out_dtype), state


def _initial_state(q, v, state):
    shape = (*q.shape[:2], q.shape[-1], v.shape[-1])
    if state is None:
        return torch.zeros(shape, dtype=accumulation_dtype(q), device=q.device)
    check_state("state", state, shape, q)
    return state


_announced = set()


def _choose_backend(backend, q, k, v):
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "triton":
        obstacle = why_not_triton(q, k, v)
        if obstacle:
            raise ValueError(f"backend: 'triton' cannot run here: {obstacle}; use 'torch' or 'auto'")
    if backend != "auto":
        return backend
    obstacle = why_not_triton(q, k, v) if q.is_cuda else "the tensors are not on a GPU"
    chosen = "torch" if obstacle else "triton"
    note = f"fast weights on {q.device.type}: backend {chosen}" + (f" ({obstacle})" if obstacle else "")
    if note not in _announced:
        _announced.add(note)
        logger.info(note)
    return chosen
