"""The fast weight rules step by step: the specification every other backend is tested against.

Each function is a plain loop over the sequence with autograd through every step, so it is slow and
keeps one state per step. Shapes: ``q, k: (B, H, L, Dk)`` after the feature map, ``v: (B, H, L, Dv)``,
``beta: (B, H, L)``, state ``W: (B, H, Dk, Dv)`` and ``z: (B, H, Dk)`` in float32 (float64 for
float64 inputs). The state is read after the write of the same step.
"""

import torch
import torch.nn.functional as F

from fwp_fairseq.ops.feature_maps import accumulation_dtype


def fast_weight_sum_reference(q, k, v, state=None):
    """``W_t = W_{t-1} + k_t v_t^T``, ``y_t = W_t^T q_t``; returns ``(y, W_L)``."""
    out_dtype = v.dtype
    q, k, v, weights = _to_accumulation(q, k, v, state)
    outputs = []
    for t in range(q.shape[2]):
        weights = weights + _outer(k[:, :, t], v[:, :, t])
        outputs.append(_read(weights, q[:, :, t]))
    return torch.stack(outputs, dim=2).to(out_dtype), weights


def fast_weight_delta_reference(q, k, v, beta, state=None):
    """``W_t = W_{t-1} + beta_t k_t (v_t - W_{t-1}^T k_t)^T``; returns ``(y, W_L)``."""
    out_dtype = v.dtype
    q, k, v, weights = _to_accumulation(q, k, v, state)
    beta = beta.to(q.dtype)
    outputs = []
    for t in range(q.shape[2]):
        removed = _read(weights, k[:, :, t])
        weights = weights + _outer(k[:, :, t], beta[:, :, t, None] * (v[:, :, t] - removed))
        outputs.append(_read(weights, q[:, :, t]))
    return torch.stack(outputs, dim=2).to(out_dtype), weights


def fast_weight_fwm_reference(q, k, v, beta, state=None):
    """The fwm baseline of the synthetic setting: a delta write, then ``W / max(1, |W|_F)``.

    ``y_t = layer_norm(W_t^T q_t)`` without affine; returns ``(y, W_L)``. Without a state the first
    step writes ``beta_1 k_1 v_1^T`` and does not rescale.
    """
    out_dtype = v.dtype
    fresh = state is None
    q, k, v, weights = _to_accumulation(q, k, v, state)
    beta = beta.to(q.dtype)
    outputs = []
    for t in range(q.shape[2]):
        removed = _read(weights, k[:, :, t])
        weights = weights + _outer(k[:, :, t], beta[:, :, t, None] * (v[:, :, t] - removed))
        if t > 0 or not fresh:
            norm = torch.linalg.vector_norm(weights, dim=(-2, -1), keepdim=True)
            weights = weights / norm.clamp(min=1)
        outputs.append(F.layer_norm(_read(weights, q[:, :, t]), v.shape[-1:], eps=1e-5))
    return torch.stack(outputs, dim=2).to(out_dtype), weights


def normalized_fast_weight_reference(q, k, v, beta=None, state=None, mode="output", eps=1e-5):
    """Attention normalisation for the sum rule (``beta=None``) and the delta rule.

    ``z_t = z_{t-1} + k_t``. ``mode="none"``: ``y_t = W_t^T q_t``. ``"output"``:
    ``y_t = W_t^T q_t / (z_t . q_t + eps)``. ``"both"`` (delta rule only): the value read for removal
    is ``W_{t-1}^T k_t / (z_{t-1} . k_t + eps)`` too; the first step of a fresh state removes nothing.
    Returns ``(y, (W_L, z_L))``; ``state`` is such a pair.
    """
    out_dtype = v.dtype
    fresh = state is None
    weights, z = (None, None) if fresh else state
    q, k, v, weights = _to_accumulation(q, k, v, weights)
    z = torch.zeros_like(k[:, :, 0]) if fresh else z
    outputs = []
    for t in range(q.shape[2]):
        q_t, k_t, written = q[:, :, t], k[:, :, t], v[:, :, t]
        if beta is not None:
            if t > 0 or not fresh:
                removed = _read(weights, k_t)
                if mode == "both":
                    removed = removed / ((z * k_t).sum(-1, keepdim=True) + eps)
                written = written - removed
            written = beta[:, :, t, None].to(q.dtype) * written
        weights = weights + _outer(k_t, written)
        z = z + k_t
        y = _read(weights, q_t)
        if mode != "none":
            y = y / ((z * q_t).sum(-1, keepdim=True) + eps)
        outputs.append(y)
    return torch.stack(outputs, dim=2).to(out_dtype), (weights, z)


def linear_attention_reference(q, k, v, eps=None):
    """Linear attention in its L x L form: causal scores ``q_t . k_s`` times the values.

    The paper's equivalence (section 3.1): equal to the sum rule without normalisation, and with
    ``eps`` given (rows divided by their sum plus ``eps``) to the sum rule with ``output``.
    """
    scores = (q @ k.transpose(-1, -2)).tril()
    if eps is not None:
        scores = scores / (scores.sum(-1, keepdim=True) + eps)
    return scores @ v


def _to_accumulation(q, k, v, state):
    dtype = accumulation_dtype(v)
    if state is None:
        state = v.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1], dtype=dtype)
    return q.to(dtype), k.to(dtype), v.to(dtype), state.to(dtype)


def _outer(key, value):
    return key.unsqueeze(-1) * value.unsqueeze(-2)


def _read(weights, key):
    # A product and a sum rather than a matmul, which autocast would round to a half type.
    return (weights * key.unsqueeze(-1)).sum(-2)
