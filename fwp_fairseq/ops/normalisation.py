"""Attention normalisation: the fast weight rules with their reads divided by ``z_t . q_t``.

``z_t = z_{t-1} + k_t`` is the sum of all keys so far and belongs to the state, which is the pair
``(W, z)`` here, ``W: (B, H, Dk, Dv)`` and ``z: (B, H, Dk)``. Half types are computed in float32
throughout, since reads before the division grow with L beyond what float16 holds.
"""

import torch

from fwp_fairseq.ops.fast_weights import fast_weight_delta, fast_weight_step, fast_weight_sum
from fwp_fairseq.ops.feature_maps import accumulation_dtype
from fwp_fairseq.ops.validation import check_inputs, check_state

DELTA_NORMALISATIONS = ("output", "both")


def normalized_fast_weight_sum(q, k, v, state=None, eps=1e-5, backend="auto"):
    """The sum rule with ``y_t = W_t^T q_t / (z_t . q_t + eps)`` (section 3.1, eq. 19).

    Arguments and errors as for ``fast_weight_sum``, but for ``state``, which is ``(W, z)`` or None.
    Returns ``(out, (W_L, z_L))``.
    """
    check_inputs("B, H, L", q, k, v)
    out_dtype = v.dtype
    q, k, v = _to_accumulation(q, k, v)
    if state is not None:
        _check_pair(state, q, v)
        state = torch.cat((state[0], state[1].unsqueeze(-1)), dim=-1)
    # A column of ones among the values makes z one more column of the state.
    values = torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)
    read, state = fast_weight_sum(q, k, values, state, backend)
    out = read[..., :-1] / (read[..., -1:] + eps)
    return out.to(out_dtype), (state[..., :-1], state[..., -1])


def normalized_fast_weight_delta(
    q, k, v, beta, state=None, normalisation="output", eps=1e-5, backend="auto"
):
    """The delta rule with ``y_t = W_t^T q_t / (z_t . q_t + eps)``.

    With ``normalisation="both"`` the value read for removal is normalised too,
    ``W_{t-1}^T k_t / (z_{t-1} . k_t + eps)``, where the first step of a fresh state removes nothing.
    Arguments and errors as for ``fast_weight_delta``, but for ``state``, which is ``(W, z)`` or None.
    Returns ``(out, (W_L, z_L))``.
    """
    _check_normalisation(normalisation, DELTA_NORMALISATIONS)
    check_inputs("B, H, L", q, k, v, beta=beta)
    out_dtype = v.dtype
    q, k, v, beta = _to_accumulation(q, k, v, beta)
    weights = sums = None
    if state is not None:
        _check_pair(state, q, v)
        weights, sums = state[0], state[1].unsqueeze(-1)
    ones = torch.ones_like(v[..., :1])
    if normalisation == "both":
        # z_{t-1} . k_t: the same keys, each written one step later.
        before = torch.cat((torch.zeros_like(k[:, :, :1]), k[:, :, :-1]), dim=2)
        divisor = fast_weight_sum(k, before, ones, sums, backend)[0] + eps
        if state is None:
            divisor = torch.cat((ones[:, :, :1], divisor[:, :, 1:]), dim=2)
        # beta k (v - W^T k / c)^T = (beta / c) k (c v - W^T k)^T: the plain delta rule again.
        v, beta = v * divisor, beta / divisor.squeeze(-1)
    read, weights = fast_weight_delta(q, k, v, beta, weights, backend)
    normaliser, sums = fast_weight_sum(q, k, ones, sums, backend)
    return (read / (normaliser + eps)).to(out_dtype), (weights, sums.squeeze(-1))


def normalized_fast_weight_step(state, q, k, v, beta=None, normalisation="output", eps=1e-5):
    """One step of the normalised sum rule (``beta=None``) or delta rule, for decoding.

    ``q, k: (B, H, Dk)``, ``v: (B, H, Dv)``, ``beta: (B, H)``, ``state`` the pair ``(W, z)``. Returns
    ``(out, (W, z))`` with ``out: (B, H, Dv)``. Errors as for ``fast_weight_step``.
    """
    _check_normalisation(normalisation, ("output",) if beta is None else DELTA_NORMALISATIONS)
    check_inputs("B, H", q, k, v, **({} if beta is None else {"beta": beta}))
    _check_pair(state, q, v)
    weights, sums = state
    out_dtype = v.dtype
    q, k, v = _to_accumulation(q, k, v)
    beta = None if beta is None else beta.to(v.dtype)
    if normalisation == "both":
        # as in the sequence form; where z is zero W is too, so that nothing is removed
        divisor = _dot(sums, k) + eps
        v, beta = v * divisor, beta / divisor.squeeze(-1)
    read, weights = fast_weight_step(weights, q, k, v, beta)
    sums = sums + k
    return (read / (_dot(sums, q) + eps)).to(out_dtype), (weights, sums)


def _check_normalisation(normalisation, allowed):
    if normalisation not in allowed:
        raise ValueError(f"normalisation: expected one of {', '.join(allowed)}, got {normalisation!r}")


def _dot(x, y):
    return (x * y).sum(-1, keepdim=True)


def _to_accumulation(*tensors):
    return [x.to(accumulation_dtype(x)) for x in tensors]


def _check_pair(state, q, v):
    if not isinstance(state, tuple) or len(state) != 2:
        raise ValueError(f"state: expected a pair (W, z) or None, got {type(state).__name__}")
    check_state("state[0]", state[0], (*q.shape[:2], q.shape[-1], v.shape[-1]), q)
    check_state("state[1]", state[1], (*q.shape[:2], q.shape[-1]), q)
