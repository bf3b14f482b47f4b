"""Inputs for the Triton tests and the comparison of a Triton run with the float64 reference.

Used by test_triton_interpreter.py, which calls it in a process of its own, and test_triton_gpu.py.
"""

import math
from contextlib import contextmanager

import torch

from fwp_fairseq.ops.reference import fast_weight_delta_reference, fast_weight_sum_reference

REFERENCES = {"sum": fast_weight_sum_reference, "delta": fast_weight_delta_reference}


@contextmanager
def tf32_allowed():
    """The user's switch; pytest's monkeypatch cannot restore this property."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def triton_rule(rule):
    if rule == "sum":
        from fwp_fairseq.ops.triton_sum import fast_weight_sum_triton

        return fast_weight_sum_triton
    from fwp_fairseq.ops.triton_delta import fast_weight_delta_triton

    return fast_weight_delta_triton


def make_inputs(rule, shape, dtype=torch.float32, with_state=True, device="cpu"):
    """Random inputs by name for shape (B, H, L, Dk, Dv); keys have length about 1, as after a feature map."""
    batch, heads, length, key_dim, value_dim = shape
    random = torch.Generator(device).manual_seed(length + key_dim)

    def normal(*size):
        return torch.randn(*size, generator=random, device=device)

    inputs = {
        "q": normal(batch, heads, length, key_dim).to(dtype),
        "k": (normal(batch, heads, length, key_dim) / math.sqrt(key_dim)).to(dtype),
        "v": normal(batch, heads, length, value_dim).to(dtype),
    }
    if rule == "delta":
        inputs["beta"] = torch.rand(batch, heads, length, generator=random, device=device).to(dtype)
    if with_state:
        inputs["state"] = normal(batch, heads, key_dim, value_dim)
    return inputs


def relative_errors(rule, inputs, gradient_scale=1.0, reference=None):
    """|triton - reference| / |reference| of both results and of every gradient, by name.

    The reference computes in float64 from the same, already rounded inputs.
    """
    actual = _results_and_gradients(triton_rule(rule), inputs, gradient_scale, lambda x: x)
    expected = _results_and_gradients(
        reference or REFERENCES[rule], inputs, gradient_scale, lambda x: x.double()
    )
    errors = {}
    for name, value in actual.items():
        scale = expected[name].norm()
        error = (value.double() - expected[name]).norm()
        # A reference of exact zeros (the gradient through zero keys) is met by exact zeros only.
        errors[name] = (error / scale).item() if scale > 0 else error.item()
    return errors


def _results_and_gradients(rule, inputs, gradient_scale, cast):
    # `cast` keeps strides, so that non-contiguous inputs stay so.
    leaves = {name: cast(x).detach().requires_grad_() for name, x in inputs.items()}
    out, state = rule(**leaves)
    random = torch.Generator(out.device).manual_seed(0)
    upstream = [
        torch.randn(x.shape, generator=random, device=x.device) * gradient_scale for x in (out, state)
    ]
    # Rounded to the dtype of the inputs first, so that every run gets the same gradient.
    upstream[0] = upstream[0].to(inputs["v"].dtype)
    torch.autograd.backward((out, state), [cast(x) for x in upstream])
    gradients = {f"d{name}": x.grad for name, x in leaves.items()}
    return {"out": out.detach(), "state": state.detach(), **gradients}
