"""Scores and their gradients without the features of the keys, against those that autograd takes through them."""

import pytest
import torch

from fwp_fairseq.modules.one_query_read import dpfp_scores, favor_scores
from fwp_fairseq.ops import favor_random_matrix


def inputs(length, d, scale=1.0, dtype=torch.double):
    generator = torch.Generator().manual_seed(length)
    shapes = (3, length, d), (3, d)
    return [(torch.randn(*shape, generator=generator, dtype=dtype) * scale).requires_grad_() for shape in shapes]


def plain_dpfp(x, nu):
    """Equation 37 of the paper, component by component."""
    r = torch.cat((x.relu(), (-x).relu()), -1)
    return torch.cat([r * r.roll(j, -1) for j in range(1, nu + 1)], -1)


def plain_favor(x, omega):
    """Lemma 1 of Choromanski et al. 2021."""
    offset = x.square().sum(-1, keepdim=True) / 2
    parts = [torch.exp(sign * (x @ omega) - offset) for sign in (1, -1)]
    return torch.cat(parts, -1) * (2 * omega.shape[1]) ** -0.5


def compare(fast, feature_map, keys, query):
    plain = (feature_map(keys) @ feature_map(query).unsqueeze(-1)).squeeze(-1)
    scores = fast(keys, query)
    torch.testing.assert_close(scores, plain, rtol=1e-10, atol=1e-12)
    weight = torch.randn(scores.shape, dtype=scores.dtype)
    expected = torch.autograd.grad((plain * weight).sum(), (keys, query))
    for got, wanted in zip(torch.autograd.grad((scores * weight).sum(), (keys, query)), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("length", [1, 2, 65])
@pytest.mark.parametrize("d, nu", [(1, 1), (7, 1), (7, 2), (7, 3), (7, 14), (7, 20), (64, 3)])
def test_dpfp(length, d, nu):
    compare(lambda k, q: dpfp_scores(k, q, nu), lambda x: plain_dpfp(x, nu), *inputs(length, d))


@pytest.mark.parametrize("length", [1, 2, 65])
@pytest.mark.parametrize("d, m", [(1, 1), (7, 3), (7, 16), (64, 64)])
def test_favor(length, d, m):
    omega = favor_random_matrix(d, m, dtype=torch.double)
    compare(lambda k, q: favor_scores(k, q, omega), lambda x: plain_favor(x, omega), *inputs(length, d, 0.5))


def test_favor_of_keys_far_too_long_for_float32():
    """Their features underflow: the scores are next to nothing, and nothing becomes NaN."""
    keys, query = inputs(9, 64, 20.0, torch.float)
    scores = favor_scores(keys, query, favor_random_matrix(64, 32))
    assert scores.max() < 1e-30
    gradients = torch.autograd.grad(scores.sum(), (keys, query))
    assert all(gradient.isfinite().all() and gradient.abs().max() < 1e-25 for gradient in gradients)
