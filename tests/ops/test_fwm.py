"""The fwm rule without a Dk x Dv state per step, against the step-by-step reference."""

import pytest
import torch

from fwp_fairseq.ops import fast_weight_fwm
from fwp_fairseq.ops.reference import fast_weight_fwm_reference
from tests.ops.rule_inputs import largest_relative_error


def make_inputs(length, key_size=5, value_size=3, key_scale=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(length)
    k, v = (torch.randn(3, length, n, generator=generator, dtype=dtype) for n in (key_size, value_size))
    beta = torch.rand(3, length, generator=generator, dtype=dtype)
    return [key_scale * k, v, beta, torch.randn(3, key_size, value_size, generator=generator, dtype=dtype)]


def reference(k, v, beta, state=None):
    k, v, beta = (x.unsqueeze(1) for x in (k, v, beta))
    state = state if state is None else state.unsqueeze(1)
    return fast_weight_fwm_reference(k, k, v, beta, state)[1].squeeze(1)


def state_and_gradients(function, inputs):
    inputs = [x.detach().requires_grad_() for x in inputs]
    state = function(*inputs)
    return [state, *torch.autograd.grad((state * state.detach().cos()).sum(), inputs)]


@pytest.mark.parametrize("length", [1, 2, 40, 64, 65, 150])
@pytest.mark.parametrize("key_scale", [0.2, 1.0, 3.0])  # the norm rarely, often and always above 1
@pytest.mark.parametrize("fresh", [True, False])
def test_state_and_gradients_equal_the_reference(length, key_scale, fresh):
    inputs = make_inputs(length, key_scale=key_scale)[: 3 if fresh else 4]
    expected = state_and_gradients(reference, inputs)
    assert largest_relative_error(state_and_gradients(fast_weight_fwm, inputs), expected) < 1e-9


def test_a_batch_of_one_is_computed_alike_and_its_inputs_are_left_alone():
    inputs = [x[:1] for x in make_inputs(70)]
    kept = [x.clone() for x in inputs]
    expected = state_and_gradients(reference, inputs)
    assert largest_relative_error(state_and_gradients(fast_weight_fwm, inputs), expected) < 1e-9
    assert all(map(torch.equal, inputs, kept))


@pytest.mark.parametrize("fresh", [True, False])
def test_gradcheck(fresh):
    inputs = [x[:2].clone().requires_grad_() for x in make_inputs(6, 3, 2)[: 3 if fresh else 4]]
    assert torch.autograd.gradcheck(fast_weight_fwm, inputs)


def test_long_training_like_sequence_in_float32():
    k, v, beta, _ = make_inputs(400, 64, 20, dtype=torch.float32)
    inputs = [k.tanh(), torch.nn.functional.one_hot(v.argmax(-1), 20).float(), beta]
    exact = state_and_gradients(reference, [x.double() for x in inputs])
    assert largest_relative_error(state_and_gradients(fast_weight_fwm, inputs), exact) < 1e-4


def test_autocast_and_half_inputs_are_summed_in_float32():
    k, v, beta, _ = make_inputs(70, dtype=torch.float32)
    expected = fast_weight_fwm(k, v, beta)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fast_weight_fwm(k, v, beta), expected)
    half = fast_weight_fwm(k.bfloat16(), v.bfloat16(), beta.bfloat16())
    assert half.dtype == torch.float32
    rounded = fast_weight_fwm(*(x.bfloat16().float() for x in (k, v, beta)))
    assert torch.equal(half, rounded)
