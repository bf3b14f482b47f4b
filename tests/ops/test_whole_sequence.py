"""Reads of the whole sequence, by either way, against sums that are written out position by position."""

import pytest
import torch

from fwp_fairseq.ops import read_normalized, read_whole_sequence, sum_over_sequence
from tests.ops.rule_inputs import largest_relative_error

EPS = 1e-5


def make_inputs(queries, length, key_size, value_size, dtype=torch.double):
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.rand(2, 3, n, key_size, generator=generator, dtype=torch.double) for n in (queries, length))
    v = torch.randn(2, 3, length, value_size, generator=generator, dtype=torch.double)
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


def written_out(q, k, v):
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    for query in range(q.shape[2]):
        products = [(q[:, :, query] * k[:, :, i]).sum(-1, keepdim=True) for i in range(k.shape[2])]
        read = sum(product * v[:, :, i] for i, product in enumerate(products))
        out[:, :, query] = read / (sum(products) + EPS)
    return out


def with_gradients(function, inputs):
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad((out * out.detach().cos()).sum(), inputs)]


@pytest.mark.parametrize("queries, length", [(1, 1), (1, 9), (9, 1), (5, 7), (40, 33)])
@pytest.mark.parametrize("key_size, value_size", [(1, 1), (2, 3), (70, 8)])
def test_values_and_gradients(queries, length, key_size, value_size):
    inputs = make_inputs(queries, length, key_size, value_size)
    expected = with_gradients(written_out, inputs)
    through_state = with_gradients(lambda q, k, v: read_normalized(sum_over_sequence(k, v), q), inputs)
    torch.testing.assert_close(with_gradients(read_whole_sequence, inputs), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(through_state, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("length", [3, 200])  # few steps and many
def test_where_nothing_was_written_the_read_is_zero(length):
    q, k, v = make_inputs(4, length, 5, 6)
    assert not read_whole_sequence(q, torch.zeros_like(k), v).any()


@pytest.mark.parametrize("length", [3, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_stays_within_its_own_rounding(length, dtype):
    inputs = make_inputs(4, length, 16, 16, dtype)
    exact = with_gradients(written_out, [x.detach().double().requires_grad_() for x in inputs])
    results = with_gradients(read_whole_sequence, inputs)
    assert all(x.dtype == dtype for x in results)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(read_whole_sequence(*inputs), results[0])
    assert largest_relative_error(results, exact) < (1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("length", [3, 200])
def test_values_of_another_length_are_an_error_that_names_them(length):
    q, k, v = make_inputs(4, length, 16, 16)
    with pytest.raises(ValueError, match=r"^v: expected shape"):
        read_whole_sequence(q, k, v[:, :, :2])
