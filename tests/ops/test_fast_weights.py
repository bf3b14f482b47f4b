"""The chunked rules against the step-by-step reference: values, gradients, states, dtypes, memory."""

import pytest
import torch

import fwp_fairseq.ops.chunked_delta as chunked_delta_module
import fwp_fairseq.ops.chunked_sum as chunked_sum_module
from fwp_fairseq.ops import chunks, fast_weight_delta, fast_weight_step, fast_weight_sum
from fwp_fairseq.ops.chunked_delta import chunked_delta
from fwp_fairseq.ops.chunked_sum import chunked_sum
from tests.ops.rule_inputs import (
    largest_relative_error,
    make_inputs,
    outputs_and_gradients,
    run_rule,
)

both_rules = pytest.mark.parametrize("rule", ["sum", "delta"])
LENGTHS = (1, 2, 63, 64, 65, 200)
SIZES = ((1, 1), (3, 70), (16, 16), (100, 33), (512, 8))


@both_rules
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("key_size, value_size", SIZES)
def test_chunked_equals_reference_in_values_states_and_gradients(rule, length, key_size, value_size):
    inputs = make_inputs(rule, 1, 2, length, key_size, value_size)
    expected = outputs_and_gradients(rule, inputs, "reference")
    assert largest_relative_error(outputs_and_gradients(rule, inputs, "torch"), expected) < 1e-11


@both_rules
@pytest.mark.parametrize("chunks_at_once", [1, 3])
def test_a_sequence_too_long_for_one_batch_of_chunks_is_the_same(rule, chunks_at_once, monkeypatch):
    inputs = make_inputs(rule, 2, 1, 200, 5, 3)
    expected = outputs_and_gradients(rule, inputs, "reference")
    module = {"sum": chunked_sum_module, "delta": chunked_delta_module}[rule]
    monkeypatch.setattr(chunks, "_SPAN_NUMBERS", 10 * chunks_at_once)
    monkeypatch.setattr(module, "cut_into_spans", lambda length, chunk, _: chunks.cut_into_spans(length, chunk, 10))
    assert largest_relative_error(outputs_and_gradients(rule, inputs, "torch"), expected) < 1e-11


@both_rules
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("key_size", (1, 7, 512))
def test_gradients_pass_gradcheck(rule, length, key_size):
    inputs = [x.requires_grad_() for x in make_inputs(rule, 1, 2, length, key_size, 3)]
    assert torch.autograd.gradcheck(lambda *x: run_rule(rule, x, "torch"), inputs, fast_mode=True)


@both_rules
def test_every_single_derivative_is_right_across_chunks_and_their_rest(rule):
    inputs = [x.requires_grad_() for x in make_inputs(rule, 2, 1, 7, 3, 2)]
    function = chunked_delta if rule == "delta" else chunked_sum
    assert torch.autograd.gradcheck(lambda *x: function(*x, chunk=3), inputs)


@both_rules
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_sequence_in_pieces_with_the_state_carried_equals_one_pass(rule, backend):
    *inputs, state = make_inputs(rule, length=150)
    whole, last = run_rule(rule, [*inputs, state], backend)
    pieces = []
    for part in zip(*(x.split((1, 70, 79), dim=2) for x in inputs)):
        out, state = run_rule(rule, [*part, state], backend)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, dim=2), whole)
    torch.testing.assert_close(state, last)


@both_rules
def test_gradients_flow_through_a_carried_state(rule):
    *inputs, state = make_inputs(rule, length=90)
    inputs = [x.requires_grad_() for x in inputs]
    whole, last = run_rule(rule, [*inputs, state], "torch")
    expected = torch.autograd.grad(whole.square().sum() + last.sum(), inputs)
    first, second = zip(*(x.split((40, 50), dim=2) for x in inputs))
    out_1, middle = run_rule(rule, [*first, state], "torch")
    out_2, last = run_rule(rule, [*second, middle], "torch")
    grads = torch.autograd.grad(out_1.square().sum() + out_2.square().sum() + last.sum(), inputs)
    assert largest_relative_error(grads, expected) < 1e-11


@both_rules
@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_stays_within_its_own_rounding(rule, backend, dtype):
    inputs = make_inputs(rule, length=130, key_size=16, value_size=16, dtype=dtype)
    exact = outputs_and_gradients(rule, [x.double() for x in inputs], "reference")
    results = outputs_and_gradients(rule, inputs, backend)
    assert results[0].dtype == dtype and results[1].dtype == torch.float32
    assert [x.dtype for x in results[2:-1]] == [dtype] * len(results[2:-1])
    # Inputs are exact here, sums are float32: what is left is the rounding of each result.
    tolerance = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
    assert largest_relative_error(results, exact) < tolerance


@both_rules
def test_without_a_state_it_starts_at_zero(rule):
    *inputs, state = make_inputs(rule, length=70)
    for backend in ("reference", "torch"):
        out, last = run_rule(rule, [*inputs, None], backend)
        expected, expected_last = run_rule(rule, [*inputs, torch.zeros_like(state)], backend)
        assert torch.equal(out, expected) and torch.equal(last, expected_last)


@both_rules
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 64, 65])  # at most a chunk: the zeros are never read
@pytest.mark.parametrize("key_size, value_size", [(1, 1), (16, 16), (100, 33), (512, 8)])
def test_a_fresh_sequence_equals_the_reference_in_values_states_and_gradients(rule, length, key_size, value_size):
    *inputs, _ = make_inputs(rule, 1, 2, length, key_size, value_size)
    expected = outputs_and_gradients(rule, inputs, "reference")
    assert largest_relative_error(outputs_and_gradients(rule, inputs, "torch"), expected) < 1e-11


@both_rules
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_of_a_fresh_sequence_stays_within_its_own_rounding(rule, dtype):
    *inputs, _ = make_inputs(rule, length=13, key_size=16, value_size=16, dtype=dtype)
    exact = outputs_and_gradients(rule, [x.double() for x in inputs], "reference")
    results = outputs_and_gradients(rule, inputs, "torch")
    assert [x.dtype for x in results] == [dtype, torch.float32, *(dtype for _ in inputs)]
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(torch.equal, run_rule(rule, inputs, "torch"), results))
    assert largest_relative_error(results, exact) < (1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps)


@both_rules
@pytest.mark.parametrize("length", [1, 32, 70])  # a single chunk could be a view of the input
def test_the_given_state_and_the_inputs_are_left_alone(rule, length):
    inputs = make_inputs(rule, length=length)
    copies = [x.clone() for x in inputs]
    outputs_and_gradients(rule, inputs, "torch")
    run_rule(rule, inputs, "torch")[1].zero_()
    assert all(torch.equal(x, y) for x, y in zip(inputs, copies))


@both_rules
def test_non_contiguous_inputs(rule):
    inputs = make_inputs(rule, length=100)
    expected = outputs_and_gradients(rule, inputs, "torch")
    scattered = [x.movedim(1, 2).contiguous().movedim(2, 1) for x in inputs[:-1]] + [inputs[-1].mT.contiguous().mT]
    assert not any(x.is_contiguous() for x in scattered)
    assert largest_relative_error(outputs_and_gradients(rule, scattered, "torch"), expected) < 1e-13
    expanded = [x[:, :1].expand_as(x) for x in inputs]
    expected = outputs_and_gradients(rule, [x.contiguous() for x in expanded], "torch")
    assert largest_relative_error(outputs_and_gradients(rule, expanded, "torch"), expected) < 1e-13


@both_rules
def test_more_heads_than_the_second_axis_of_a_cuda_grid(rule):
    inputs = make_inputs(rule, 256, 257, 3, 2, 1, dtype=torch.float32)
    expected = run_rule(rule, inputs, "reference")
    assert largest_relative_error(run_rule(rule, inputs, "torch"), expected) < 1e-5


def saved_numbers(rule, length):
    """How many numbers the autograd graph of one call keeps for its backward."""
    inputs = make_inputs(rule, 1, 2, length, 16, 16, dtype=torch.float32)
    inputs = [x.requires_grad_() for x in inputs]
    storages = {}

    def pack(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        results = run_rule(rule, inputs, "torch")
    assert results[0].requires_grad
    return sum(storages.values())


@both_rules
def test_memory_kept_for_the_backward_is_linear_in_length(rule):
    inputs = 2 * 1024 * (16 + 16 + 16 + 1)
    assert saved_numbers(rule, 1024) < 2.5 * inputs
    assert saved_numbers(rule, 4096) < 4.1 * saved_numbers(rule, 1024)


@both_rules
@pytest.mark.parametrize("in_place", [False, True])
def test_decoding_step_by_step_equals_the_whole_sequence(rule, in_place):
    *inputs, state = make_inputs(rule, length=70, dtype=torch.float32)
    whole, last = run_rule(rule, [*inputs, state], "torch")
    before = state.clone()
    for t in range(70):
        given = state
        q, k, v, *beta = (x[:, :, t] for x in inputs)
        out, state = fast_weight_step(given, q, k, v, *beta, in_place=in_place)
        torch.testing.assert_close(out, whole[:, :, t], atol=1e-5, rtol=1e-5)
        assert (state is given) == in_place
        if t == 0 and not in_place:
            assert torch.equal(given, before)
    torch.testing.assert_close(state, last, atol=1e-5, rtol=1e-5)


def test_a_decoding_step_is_differentiable():
    state, q, k, v, beta = (
        torch.rand(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((1, 2, 3, 2), (1, 2, 3), (1, 2, 3), (1, 2, 2), (1, 2))
    )
    assert torch.autograd.gradcheck(fast_weight_step, (state, q, k, v, beta))


@both_rules
def test_right_inside_torch_compile(rule):
    inputs = make_inputs(rule, length=70, dtype=torch.float32)

    def layer(*x):
        out, state = run_rule(rule, [x[0] * 2, *x[1:]], "torch")
        return out.tanh(), state + 1

    results = []
    for function in (layer, torch.compile(layer, backend="aot_eager")):
        x = [y.detach().requires_grad_() for y in inputs]
        out, state = function(*x)
        results.append([out, state, *torch.autograd.grad(out.sum() + state.square().sum(), x)])
    assert largest_relative_error(results[1], results[0]) < 1e-6


@both_rules
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_autocast_does_not_lower_the_precision_of_sums(rule, backend):
    inputs = make_inputs(rule, length=70, dtype=torch.float32)
    expected = outputs_and_gradients(rule, inputs, backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = outputs_and_gradients(rule, inputs, backend)
        step = fast_weight_step(inputs[-1], *(x[:, :, 0] for x in inputs[:-1]))[0]
        mixed = [inputs[0].bfloat16(), *inputs[1:]]
        out, _ = run_rule(rule, mixed, backend)
    assert largest_relative_error(results, expected) < 1e-6
    assert largest_relative_error([step], [expected[0][:, :, 0]]) < 1e-6
    assert largest_relative_error([out], [expected[0]]) < 0.01
