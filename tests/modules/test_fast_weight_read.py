"""The shortcuts of the synthetic model equal the plain form: fast weights written step by step by `ops.reference`."""

import pytest
import torch
from torch.autograd import gradcheck

from fwp_fairseq.modules import fast_weight_read as read
from fwp_fairseq.ops import fast_weight_delta, fast_weight_sum, sum_normalize

LENGTHS = (1, 2, 15, 16, 17, 40)


def tensors(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(*shape, generator=generator, dtype=torch.double).requires_grad_() for shape in shapes]


def compare(fast, plain, inputs):
    """Values and gradients."""
    outputs = fast(*inputs), plain(*inputs)
    torch.testing.assert_close(*outputs, rtol=1e-10, atol=1e-12)
    weight = torch.rand(outputs[0].shape, dtype=torch.double)
    gradients = [torch.autograd.grad((out * weight).sum(), inputs) for out in outputs]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def read_by_reference(state, queries):
    return queries @ state.squeeze(1)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("queries", [1, 3])
def test_delta_read(length, queries):
    inputs = tensors((2, length, 6), (2, queries, 6), (2, length))
    inputs[0] = (inputs[0] / 3).detach().requires_grad_()  # keys of a norm below 1, as normalised ones have
    values = torch.rand(2, length, 4, dtype=torch.double)

    def fast(keys, q, beta):
        return read.delta_read_weights(keys, q, beta) @ values

    def plain(keys, q, beta):
        keys = keys.unsqueeze(1)
        _, state = fast_weight_delta(keys, keys, values.unsqueeze(1), beta.unsqueeze(1), backend="reference")
        return read_by_reference(state, q)

    compare(fast, plain, inputs)


def test_delta_read_gradients_numerically():
    inputs = tensors((2, 18, 3), (2, 2, 3), (2, 18))
    assert gradcheck(read.delta_read_weights, inputs)


def test_delta_read_of_keys_that_are_nothing_or_nearly():
    """A key of zeros is neither written nor read. One with tiny features counts in full once it is normalised, as
    FAVOR+'s do; no gradient overflows on the way."""
    keys, queries, beta = tensors((2, 20, 6), (2, 1, 6), (2, 20))
    size = torch.ones(20, 1)
    size[[0, 7, 19]], size[[3, 8]] = 0, 1e-25
    keys, queries, beta = ((t.detach().float()).requires_grad_() for t in (keys, queries, beta))
    weights = read.delta_read_weights(sum_normalize(keys * size), queries, beta)
    assert torch.all(weights[:, :, [0, 7, 19]] == 0) and torch.isfinite(weights).all()
    full = (size > 0).float()
    torch.testing.assert_close(weights, read.delta_read_weights(sum_normalize(keys * full), queries, beta))
    gradients = torch.autograd.grad(weights.square().sum(), (keys, queries, beta))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("length", LENGTHS)
def test_sum_read(length):
    inputs = tensors((2, length, 6), (2, 3, 6))
    values = torch.rand(2, length, 4, dtype=torch.double)

    def fast(keys, q):
        return read.sum_read_weights(keys, q, 1e-6) @ values

    def plain(keys, q):
        keys = keys.unsqueeze(1)
        ones = torch.ones(2, 1, length, 1, dtype=torch.double)
        _, state = fast_weight_sum(keys, keys, torch.cat((values.unsqueeze(1), ones), -1), backend="reference")
        out = read_by_reference(state, q)
        return out[..., :-1] / (out[..., -1:] + 1e-6)

    compare(fast, plain, inputs)


def test_softmax_read_is_attention():
    keys, queries, values = tensors((2, 9, 8), (2, 3, 8), (2, 9, 4))
    expected = torch.nn.functional.scaled_dot_product_attention(queries, keys, values)
    torch.testing.assert_close(read.softmax_read_weights(keys, queries) @ values, expected)
