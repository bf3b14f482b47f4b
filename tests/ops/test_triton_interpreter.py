"""Every Triton kernel in Triton's CPU interpreter against the step-by-step reference, gradients too.

Triton decides when it is imported whether it interprets, so these checks run in one process of their
own; the compile tests need the ordinary Triton of this one.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch

from tests.ops import triton_checks

SHAPES = [  # B, H, L, Dk, Dv, with an initial state
    (1, 2, 1, 1, 1, True),
    (2, 1, 2, 3, 5, False),
    (1, 1, 15, 16, 16, True),
    (1, 1, 16, 64, 5, False),
    (1, 1, 17, 3, 64, True),
    (1, 1, 33, 100, 1, False),
    (1, 1, 65, 16, 64, True),
    (1, 1, 130, 64, 16, True),
    (1, 1, 66, 100, 5, True),
]
RULES = ["sum", "delta"]
FLOAT32_ERROR = 5e-6


@pytest.fixture(scope="module")
def interpreted():
    """Calls a function of this module in a process where Triton interprets its kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setenv("OMP_NUM_THREADS", "1")  # threads cost more than they help in products this small
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            yield lambda function, *args: pool.submit(function, *args).result()


def errors_of_shape(rule, shape, dtype):
    assert os.environ["TRITON_INTERPRET"] == "1"
    torch.set_num_threads(1)
    *sizes, with_state = shape
    return triton_checks.relative_errors(rule, triton_checks.make_inputs(rule, sizes, dtype, with_state))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_float32_is_the_reference_to_rounding(interpreted, rule, shape):
    errors = interpreted(errors_of_shape, rule, shape, torch.float32)
    assert len(errors) == 5 + (rule == "delta") + shape[-1]
    assert max(errors.values()) < FLOAT32_ERROR, errors


@pytest.mark.parametrize(
    "dtype, rounding", [(torch.bfloat16, 2**-7), (torch.float16, 2**-10)], ids=["bf16", "fp16"]
)
@pytest.mark.parametrize("rule", RULES)
def test_16_bit_inputs_lose_only_their_own_rounding(interpreted, rule, dtype, rounding):
    # Chunks are longer than for float32, and 128 keys still stay in registers.
    errors = interpreted(errors_of_shape, rule, (1, 1, 65, 100, 5, True), dtype)
    # The state and its gradient are float32 and were accumulated in it.
    assert max(errors.pop("state"), errors.pop("dstate")) < FLOAT32_ERROR, errors
    assert max(errors.values()) < rounding, errors


def errors_as_tensor_cores_multiply(rule, dtype):
    """As `errors_of_shape`, with every product of tl.dot rounded as the precision asked for says."""
    from triton.language import float32
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def tf32(x):  # the 13 lowest of the 23 bits of the fraction rounded away
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32)

    def dot(self, a, b, accumulator, precision, _):
        a, b = a.data, b.data
        high_a, high_b = tf32(a), tf32(b)
        product = high_a @ high_b
        if precision.name == "TF32x3":
            product += tf32(a - high_a) @ high_b + high_a @ tf32(b - high_b)
        else:
            assert precision.name == "TF32"
        return TensorHandle(product + accumulator.data, float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", dot)
        return errors_of_shape(rule, (1, 1, 65, 64, 16, True), dtype)


@pytest.mark.parametrize(
    "dtype, allowed",
    [(torch.float32, FLOAT32_ERROR), (torch.bfloat16, 2**-7), (torch.float16, 2**-10)],
    ids=["fp32", "bf16", "fp16"],
)
@pytest.mark.parametrize("rule", RULES)
def test_tensor_core_products_are_precise_enough(interpreted, rule, dtype, allowed):
    errors = interpreted(errors_as_tensor_cores_multiply, rule, dtype)
    assert max(errors.values()) < allowed, errors
    if rule == "delta" and dtype != torch.float32:
        assert errors["state"] > FLOAT32_ERROR, "TF32 rounding left no trace"


def errors_of_case(rule, case):
    torch.set_num_threads(1)
    inputs = triton_checks.make_inputs(rule, (1, 1, 33, 16, 16))
    gradient_scale = 1.0
    if case == "zero keys":
        inputs["k"].zero_()
    elif case == "equal keys":
        inputs["k"][:] = inputs["k"][:, :, :1] / inputs["k"][:, :, :1].norm(dim=-1, keepdim=True)
    elif case == "beta 0 and 1":
        inputs["beta"] = inputs["beta"].round()
    elif case == "beta outside [0, 1]":
        inputs["beta"] = inputs["beta"] * 3 - 1
    elif case == "long keys":
        inputs["k"] *= 1e3
        if rule == "delta":
            inputs["beta"] *= 1e-6
    elif case == "tiny values":
        inputs["v"] *= 1e-30
        inputs["state"] *= 1e-30
    elif case == "state beyond float16":
        inputs = {name: x if name == "state" else x.half() for name, x in inputs.items()}
        inputs["state"] *= 1e5
        inputs["q"] *= 1e-2
        gradient_scale = 1e-2
    elif case == "inputs that are not contiguous":
        inputs = {name: x.mT.contiguous().mT for name, x in inputs.items() if x.dim() == 4} | {
            name: x[:, :, :1].expand(-1, -1, 33) for name, x in inputs.items() if x.dim() == 3
        }
        assert not any(x.is_contiguous() for x in inputs.values())
    return triton_checks.relative_errors(rule, inputs, gradient_scale)


@pytest.mark.parametrize(
    "rule, case",
    [
        (rule, case)
        for rule in RULES
        for case in (
            "zero keys",
            "equal keys",
            "beta 0 and 1",
            "beta outside [0, 1]",
            "long keys",
            "tiny values",
            "state beyond float16",
            "inputs that are not contiguous",
        )
        if rule == "delta" or not case.startswith("beta")
    ],
)
def test_extreme_inputs_are_finite_and_right(interpreted, rule, case):
    errors = interpreted(errors_of_case, rule, case)
    assert max(errors.values()) < (2**-10 if "float16" in case else FLOAT32_ERROR), errors


def largest_difference_of_two_halves(rule):
    torch.set_num_threads(1)
    inputs = triton_checks.make_inputs(rule, (1, 1, 70, 16, 16))
    function = triton_checks.triton_rule(rule)
    whole, end = function(**inputs)
    state, parts = inputs.pop("state"), []
    for piece in (slice(0, 37), slice(37, 70)):
        out, state = function(**{name: x[:, :, piece] for name, x in inputs.items()}, state=state)
        parts.append(out)
    return max((torch.cat(parts, 2) - whole).abs().max().item(), (state - end).abs().max().item())


@pytest.mark.parametrize("rule", RULES)
def test_a_sequence_in_two_pieces_is_the_whole_sequence(interpreted, rule):
    assert interpreted(largest_difference_of_two_halves, rule) < 1e-4
