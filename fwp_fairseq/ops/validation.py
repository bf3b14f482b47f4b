"""Checks of what the public fast weight functions are given: one ``ValueError`` per mistake.

A message names the argument, what was expected and what came.
"""

import torch

from fwp_fairseq.ops.feature_maps import accumulation_dtype

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_inputs(axes, q, k, v, **gates):
    """``q, k: (*axes, Dk)``, ``v: (*axes, Dv)``, gates such as ``beta: (*axes)``.

    ``axes`` names the leading axes, such as ``"B, H, L"``. None may be empty; all tensors share one
    floating dtype (anything goes under autocast, which mixes them) and one device.
    """
    tensors = {"q": q, "k": k, "v": v, **gates}
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise ValueError(f"{name}: expected a tensor, got {type(x).__name__}")
    if q.dim() != axes.count(",") + 2 or 0 in q.shape:
        raise ValueError(
            f"q: expected shape ({axes}, Dk) without an empty axis, got {tuple(q.shape)}"
        )
    lead = tuple(q.shape[:-1])
    _check_shape("k", k, f"({axes}, Dk)", (*lead, q.shape[-1]))
    if v.shape[:-1] != lead or v.dim() != q.dim() or v.shape[-1] == 0:
        raise ValueError(
            f"v: expected shape ({axes}, Dv) = {(*lead, 'Dv')} with Dv >= 1, got {tuple(v.shape)}"
        )
    for name, gate in gates.items():
        _check_shape(name, gate, f"({axes})", lead)

    mixing = torch.is_autocast_enabled(q.device.type)
    for name, x in tensors.items():
        if x.dtype not in _DTYPES:
            allowed = ", ".join(map(str, _DTYPES))
            raise ValueError(f"{name}: expected one of {allowed}, got {x.dtype}")
        if x.dtype != q.dtype and not mixing:
            raise ValueError(f"{name}: expected the dtype of q, {q.dtype}, got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name}: expected the device of q, {q.device}, got {x.device}")


def check_state(name, state, shape, like):
    """A state is float32, or float64 for float64 inputs, on the device of the inputs."""
    axes = {4: "(B, H, Dk, Dv)", 3: "(B, H, Dk)"}[len(shape)]
    if not isinstance(state, torch.Tensor):
        raise ValueError(
            f"{name}: expected a tensor of shape {axes} = {tuple(shape)}, got {type(state).__name__}"
        )
    _check_shape(name, state, axes, shape)
    expected = accumulation_dtype(like)
    if state.dtype != expected:
        raise ValueError(
            f"{name}: expected {expected} for inputs of {like.dtype}, got {state.dtype}"
        )
    if state.device != like.device:
        raise ValueError(f"{name}: expected the device of q, {like.device}, got {state.device}")


def _check_shape(name, x, axes, shape):
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name}: expected shape {axes} = {tuple(shape)}, got {tuple(x.shape)}")
