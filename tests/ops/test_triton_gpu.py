"""The Triton kernels on a GPU: parity with the reference, long and huge inputs.

Where there is no GPU, pytest's warnings summary says that these tests did not run.
"""

import warnings

import pytest
import torch

from fwp_fairseq.ops import fast_weight_delta, fast_weight_sum
from fwp_fairseq.ops.triton_support import why_not_triton
from tests.ops.triton_checks import make_inputs, relative_errors, tf32_allowed, triton_rule

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
both_rules = pytest.mark.parametrize("rule", ["sum", "delta"])
# The tensor cores keep 10 bits of the state for 16-bit inputs, which keep 7 (bfloat16) or 10.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-6, torch.float16: 2**-8}
SHAPES = [  # B, H, L, Dk, Dv
    (1, 1, 1, 1, 1),
    (2, 2, 130, 100, 5),
    (2, 4, 700, 64, 64),
    (1, 2, 300, 128, 64),
    (1, 2, 257, 512, 128),
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tests below run")
def test_without_a_gpu_the_kernels_refuse_and_this_file_says_it_did_not_run():
    q = torch.ones(1, 1, 4, 16)
    assert "need an NVIDIA GPU" in why_not_triton(q, q, q)
    with pytest.raises(ValueError, match="need an NVIDIA GPU"):
        fast_weight_sum(q, q, q, backend="triton")
    warnings.warn("the GPU tests of the Triton kernels did not run: no CUDA device", stacklevel=1)


@needs_gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@both_rules
def test_results_and_gradients_are_the_reference(rule, shape, dtype):
    errors = relative_errors(rule, make_inputs(rule, shape, dtype, device="cuda"))
    assert max(errors.values()) < TOLERANCE[dtype], errors


@needs_gpu
@both_rules
def test_tf32_is_used_where_the_user_allows_it(rule):
    inputs = make_inputs(rule, (1, 2, 300, 64, 64), device="cuda")
    exact = relative_errors(rule, inputs)
    with tf32_allowed():
        errors = relative_errors(rule, inputs)
    assert exact["out"] < errors["out"] < 2**-8, (exact, errors)


@needs_gpu
@both_rules
def test_16384_steps_are_as_right_as_a_few(rule):
    def chunked(**inputs):
        return {"sum": fast_weight_sum, "delta": fast_weight_delta}[rule](**inputs, backend="torch")

    inputs = make_inputs(rule, (1, 2, 16384, 64, 64), device="cuda")
    errors = relative_errors(rule, inputs, reference=chunked)
    assert max(errors.values()) < 1e-4, errors


@needs_gpu
@both_rules
def test_more_heads_than_a_second_grid_axis_holds(rule):
    errors = relative_errors(rule, make_inputs(rule, (70_000, 1, 17, 4, 4), device="cuda"))
    assert max(errors.values()) < TOLERANCE[torch.float32], errors


@needs_gpu
@both_rules
def test_more_elements_than_int32_counts(rule):
    if torch.cuda.mem_get_info()[0] < 60 * 2**30:
        pytest.skip("needs 60 GiB of free GPU memory")
    # Nine equal heads of 2^22 steps and 64 keys: the last begins at element 2^31.
    one = make_inputs(rule, (1, 1, 2**22, 64, 16), torch.bfloat16, with_state=False, device="cuda")
    inputs = {name: x.expand(-1, 9, *x.shape[2:]).detach().requires_grad_() for name, x in one.items()}
    assert inputs["q"].numel() > 2**31
    out, state = triton_rule(rule)(**inputs)
    torch.autograd.backward((out, state), (one["v"].expand_as(out), torch.ones_like(state)))
    for name, x in {"out": out, "state": state, **{f"d{n}": x.grad for n, x in inputs.items()}}.items():
        assert x[:, 0].any(), name
        assert torch.equal(x[:, 0], x[:, 8]), name
