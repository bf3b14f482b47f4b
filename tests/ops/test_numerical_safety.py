"""Long sequences and extreme inputs: the chunked rules stay finite and close where the recurrence does."""

import pytest
import torch

from fwp_fairseq.ops import fast_weight_delta, fast_weight_sum
from tests.ops.rule_inputs import largest_relative_error, make_inputs, outputs_and_gradients

both_rules = pytest.mark.parametrize("rule", ["sum", "delta"])


def unit_keys(x):
    return x / x.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("keys", ["sum-normalised", "unit", "equal", "zero"])
def test_delta_rule_over_16k_steps(beta, keys):
    length = 16384
    q, k, v, _, state = make_inputs("delta", 1, 1, length, 16, 8)
    k = {"sum-normalised": k, "unit": unit_keys(k), "equal": unit_keys(k)[:, :, :1].expand_as(k), "zero": 0 * k}[keys]
    betas = torch.full((1, 1, length), beta, dtype=torch.float64)
    double = [q, k, v, betas, state]
    single = [x.float() for x in double]
    exact = outputs_and_gradients("delta", [x.float().double() for x in double], "torch")
    results = outputs_and_gradients("delta", single, "torch")
    assert all(x.isfinite().all() for x in results)
    # With beta 2 a write reflects the state and errors are never forgotten, they add up.
    assert largest_relative_error(results, exact) < (1e-3 if beta == 2 else 1e-4)
    # The float64 chunked result is itself the recurrence, here over a first part of the sequence.
    start = slice(0, 300)
    part = [x[:, :, start] for x in double[:4]]
    expected, _ = fast_weight_delta(*part, state, backend="reference")
    torch.testing.assert_close(fast_weight_delta(*double)[0][:, :, start], expected)


def test_sum_rule_over_16k_steps():
    inputs = make_inputs("sum", 1, 2, 16384, 16, 8)
    exact = outputs_and_gradients("sum", [x.float().double() for x in inputs], "torch")
    results = outputs_and_gradients("sum", [x.float() for x in inputs], "torch")
    assert largest_relative_error(results, exact) < 1e-4


@pytest.mark.parametrize("length", [32, 200])
def test_float32_error_is_no_worse_than_that_of_the_recurrence(length):
    inputs = make_inputs("delta", 4, 4, length, 32, 32)
    inputs[1] = unit_keys(inputs[1])
    exact = outputs_and_gradients("delta", [x.float().double() for x in inputs], "reference")
    single = [x.float() for x in inputs]
    chunked, stepwise = (
        largest_relative_error(outputs_and_gradients("delta", single, backend), exact)
        for backend in ("torch", "reference")
    )
    assert chunked < 3 * stepwise


@both_rules
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18])
def test_very_small_and_very_large_values(rule, scale):
    inputs = [x.float() for x in make_inputs(rule, length=130)]
    inputs[2], inputs[-1] = inputs[2] * scale, inputs[-1] * scale
    expected = outputs_and_gradients(rule, inputs, "reference")
    assert all(x.isfinite().all() for x in expected)
    assert largest_relative_error(outputs_and_gradients(rule, inputs, "torch"), expected) < 1e-4


@both_rules
@pytest.mark.parametrize("scale", [1e-25, 1e-15, 1e15])
def test_very_small_and_very_large_queries_and_keys(rule, scale):
    inputs = [x.float() for x in make_inputs(rule, length=130)]
    inputs[0] = inputs[0] * scale
    inputs[1] = inputs[1] * min(scale, 1.0)
    expected = outputs_and_gradients(rule, inputs, "reference")
    results = outputs_and_gradients(rule, inputs, "torch")
    for x, y in zip(results, expected, strict=True):
        assert torch.equal(x.isfinite(), y.isfinite())
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4 * y.abs().max().item())


def test_steep_growth_of_unnormalised_keys_overflows_no_earlier_than_the_recurrence():
    # Each step multiplies the state by about 1 - |k|^2 = -99; only the last values are not zero.
    k = torch.full((1, 1, 64, 4), 5.0)
    v = torch.zeros(1, 1, 64, 2)
    v[:, :, 52:] = 1
    beta = torch.ones(1, 1, 64)
    expected, state = fast_weight_delta(k, k, v, beta, backend="reference")
    assert expected.isfinite().all() and expected.abs().max() > 1e18
    out, last = fast_weight_delta(k, k, v, beta, backend="torch")
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(last, state, rtol=1e-4, atol=0)


def test_scores_after_a_step_do_not_leak_into_it():
    # The products of early queries and late keys overflow, but no step reads a later write.
    q, k, v, _ = (x.float() for x in make_inputs("sum", 1, 1, 8, 4, 2))
    q[:, :, 0], k[:, :, 7] = 1e30, 1e30
    for backend in ("reference", "torch"):
        out, _ = fast_weight_sum(q, k, v, backend=backend)
        assert out[:, :, :7].isfinite().all()
    beta = torch.full((1, 1, 8), 0.5)
    out, _ = fast_weight_delta(q, k, v, beta, backend="torch")
    assert out[:, :, :7].isfinite().all()


@pytest.mark.parametrize("beta", [-0.5, 1.7])
def test_write_strengths_outside_0_to_1(beta):
    inputs = make_inputs("delta", length=130)
    inputs[1] = unit_keys(inputs[1])
    inputs[3] = torch.full_like(inputs[3], beta)
    if beta < 0:
        inputs[1] = inputs[1] / 4
    expected = outputs_and_gradients("delta", inputs, "reference")
    assert largest_relative_error(outputs_and_gradients("delta", inputs, "torch"), expected) < 1e-9
