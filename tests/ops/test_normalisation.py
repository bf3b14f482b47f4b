"""Attention normalisation in chunks against the step-by-step form, with the pair (W, z) as state."""

import pytest
import torch

from fwp_fairseq.ops import normalized_fast_weight_delta, normalized_fast_weight_step, normalized_fast_weight_sum
from fwp_fairseq.ops.reference import normalized_fast_weight_reference
from tests.ops.rule_inputs import largest_relative_error, make_inputs

KINDS = ("sum", "output", "both")


def run(kind, q, k, v, beta, state, **options):
    if kind == "sum":
        return normalized_fast_weight_sum(q, k, v, state, **options)
    return normalized_fast_weight_delta(q, k, v, beta, state, kind, **options)


def run_reference(kind, q, k, v, beta, state, **options):
    beta, mode = (None, "output") if kind == "sum" else (beta, kind)
    return normalized_fast_weight_reference(q, k, v, beta, state, mode, **options)


def flat_results(function, kind, inputs, sums, fresh, **options):
    """[out, W, z, gradients of the inputs that matter]."""
    inputs = [x.detach().requires_grad_() for x in (*inputs, sums)]
    q, k, v, beta, weights, sums = inputs
    out, (last, last_sums) = function(kind, q, k, v, beta, None if fresh else (weights, sums), **options)
    results = [out, last, last_sums]
    used = [x for x, unused in zip(inputs, (0, 0, 0, kind == "sum", fresh, fresh)) if not unused]
    loss = sum((y * torch.arange(y.numel()).view(y.shape).sin()).sum() for y in results)
    return [*results, *torch.autograd.grad(loss, used)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("length", [1, 2, 65, 130])
def test_chunked_equals_step_by_step(kind, fresh, length):
    inputs = make_inputs("delta", length=length)
    sums = torch.rand(2, 2, 8, dtype=torch.float64)
    for eps in (1e-5, 0.1):
        expected = flat_results(run_reference, kind, inputs, sums, fresh, eps=eps)
        assert largest_relative_error(flat_results(run, kind, inputs, sums, fresh, eps=eps), expected) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_in_pieces_equals_one_pass(kind):
    *inputs, _ = make_inputs("delta", length=100)
    whole, last = run(kind, *inputs, None)
    pieces, state = [], None
    for part in zip(*(x.split((1, 66, 33), dim=2) for x in inputs)):
        out, state = run(kind, *part, state)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, dim=2), whole)
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_step_by_step_equals_the_whole_sequence(kind):
    *inputs, _ = make_inputs("delta", length=70)
    whole, last = run(kind, *inputs, None)
    # from zeros, where the sequence form has a case of its own
    state = (torch.zeros(2, 2, 8, 5, dtype=torch.float64), torch.zeros(2, 2, 8, dtype=torch.float64))
    for t in range(70):
        q, k, v, beta = (x[:, :, t] for x in inputs)
        beta, mode = (None, "output") if kind == "sum" else (beta, kind)
        given, before = state, [x.clone() for x in state]
        out, state = normalized_fast_weight_step(given, q, k, v, beta, mode)
        torch.testing.assert_close(out, whole[:, :, t], rtol=1e-9, atol=1e-11)
        assert all(map(torch.equal, given, before))
    torch.testing.assert_close(state, last, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoding_step_in_half_types_keeps_its_state_in_float32(kind):
    *inputs, weights = make_inputs("delta", dtype=torch.float16)
    q, k, v, beta = (x[:, :, 0] for x in inputs)
    beta, mode = (None, "output") if kind == "sum" else (beta, kind)
    out, (weights, sums) = normalized_fast_weight_step((weights, torch.ones(2, 2, 8)), q, k, v, beta, mode)
    assert (out.dtype, weights.dtype, sums.dtype) == (torch.float16, torch.float32, torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_without_eps_the_first_read_is_the_first_value(kind):
    q, k, v, beta, _ = make_inputs("delta")
    out, _ = run(kind, q, k, v, torch.ones_like(beta), None, eps=0.0)
    assert out.isfinite().all()
    torch.testing.assert_close(out[:, :, 0], v[:, :, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_never_met_before_remove_nothing(kind):
    # z . k is 0 for every new key: only eps is left in the divisor.
    k = torch.eye(8).expand(1, 1, 8, 8)
    v, beta = torch.randn(1, 1, 8, 4), torch.ones(1, 1, 8)
    out, (weights, sums) = run(kind, k, k, v, beta, None)
    torch.testing.assert_close(out, v, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights[0, 0], v[0, 0])
    assert torch.equal(sums[0, 0], torch.ones(8))


@pytest.mark.parametrize("kind", KINDS)
def test_half_types_do_not_overflow_before_the_division(kind):
    inputs = [x.half() for x in make_inputs("delta", length=3000)[:-1]]
    inputs[0], inputs[1] = inputs[0] * 64, inputs[1] * 64
    if kind != "sum":
        inputs[1] = inputs[1] / 64
    out, _ = run(kind, *inputs, None)
    exact, _ = run(kind, *(x.double() for x in inputs), None)
    assert out.dtype == torch.float16
    assert largest_relative_error([out], [exact]) < torch.finfo(torch.float16).eps
