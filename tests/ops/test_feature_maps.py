"""The feature maps against their definitions written out, and the guards of the sum normalisation."""

import math

import pytest
import torch

from fwp_fairseq.ops import (
    dpfp_feature_map,
    elu_feature_map,
    favor_feature_map,
    favor_random_matrix,
    sum_normalize,
    tanh_feature_map,
)


def test_elu_and_tanh():
    x = torch.tensor([-2.0, 0.0, 3.0])
    torch.testing.assert_close(elu_feature_map(x), torch.tensor([math.exp(-2), 1.0, 4.0]))
    torch.testing.assert_close(tanh_feature_map(x), torch.tensor([math.tanh(-2), 0.0, math.tanh(3)]))


@pytest.mark.parametrize("nu", [1, 2, 3])
def test_dpfp_is_the_products_of_rectified_components_at_distance_1_to_nu(nu):
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    rectified = torch.cat((x.clamp(min=0), (-x).clamp(min=0)), dim=-1)
    phi = dpfp_feature_map(x, nu)
    assert phi.shape == (2, 3, 2 * 5 * nu)
    for j in range(1, nu + 1):
        for i in range(10):
            expected = rectified[..., i] * rectified[..., (i - j) % 10]
            assert torch.equal(phi[..., (j - 1) * 10 + i], expected)


def test_dpfp_1_maps_a_quarter_of_the_plane_to_each_axis():
    angles = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    phi = dpfp_feature_map(angles, 1)
    assert torch.equal(phi @ phi.T, torch.eye(4))


@pytest.mark.parametrize("nu", [1, 3])
def test_dpfp_gradient(nu):
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: dpfp_feature_map(x, nu), x)


def test_favor_is_its_formula():
    x, omega = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(8, 6, dtype=torch.float64)
    half = x.square().sum(-1, keepdim=True) / 2
    up, down = (torch.exp(sign * x @ omega - half) for sign in (1, -1))
    expected = (torch.cat((up, down), dim=-1) + 1e-4) / math.sqrt(12)
    torch.testing.assert_close(favor_feature_map(x, omega, eps=1e-4), expected)
    torch.testing.assert_close(favor_feature_map(x, omega), expected - 1e-4 / math.sqrt(12))


def test_favor_estimates_the_softmax_kernel():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 50, 16, generator=generator, dtype=torch.float64) / 4
    omega = favor_random_matrix(16, 20000, generator, dtype=torch.float64)
    estimate = (favor_feature_map(x, omega) * favor_feature_map(y, omega)).sum(-1)
    torch.testing.assert_close(estimate, (x * y).sum(-1).exp(), rtol=0.05, atol=0)


def test_favor_gradient():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    omega = favor_random_matrix(4, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: favor_feature_map(x, omega, eps=1e-4), x)


@pytest.mark.parametrize("d, m", [(8, 3), (8, 8), (8, 20), (1, 3)])
def test_random_features_are_orthogonal_in_blocks_of_d(d, m):
    omega = favor_random_matrix(d, m, dtype=torch.float64)
    assert omega.shape == (d, m)
    for block in omega.split(d, dim=1):
        gram = block.T @ block
        torch.testing.assert_close(gram, gram.diagonal().diag())


def test_random_features_have_norms_and_components_of_gaussian_vectors():
    omega = favor_random_matrix(16, 40000, torch.Generator().manual_seed(0), dtype=torch.float64)
    squares = omega.square().sum(0)  # chi-squared with 16 degrees of freedom: mean 16, variance 32
    assert abs(squares.mean() - 16) < 0.2 and abs(squares.var() - 32) < 2
    assert abs(omega.mean()) < 0.01
    torch.testing.assert_close(omega @ omega.T / 40000, torch.eye(16).double(), atol=0.05, rtol=0)


def test_random_features_repeat_by_generator():
    first, again, other = (favor_random_matrix(4, 9, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_rounded_only_at_the_end(dtype):
    x = torch.randn(4, 64).to(dtype)
    omega = favor_random_matrix(64, 32)
    exact = favor_feature_map(x.double(), omega.double())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(favor_feature_map(x, omega).double(), exact, rtol=eps, atol=torch.finfo(dtype).tiny)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mapped = favor_feature_map(x.float(), omega)
        summed = sum_normalize(mapped)
    assert mapped.dtype == summed.dtype == torch.float32
    torch.testing.assert_close(mapped.double(), exact, rtol=1e-4, atol=0)
    positive = torch.rand(3, 5000).to(dtype)
    exact = sum_normalize(positive.double())
    torch.testing.assert_close(sum_normalize(positive).double(), exact, rtol=eps, atol=1e-7)


def test_sum_normalize_divides_by_the_sum():
    x = torch.rand(2, 3, 5, dtype=torch.float64) + 0.1
    torch.testing.assert_close(sum_normalize(x), x / x.sum(-1, keepdim=True))
    torch.testing.assert_close(sum_normalize(x, eps=0.5), x / (x.sum(-1, keepdim=True) + 0.5))
    assert torch.autograd.gradcheck(sum_normalize, x.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tiny", [0.0, "denormal"])
def test_sum_normalize_of_nothing_is_zero_with_zero_gradient(dtype, tiny):
    smallest = 0.0 if tiny == 0.0 else torch.finfo(dtype).smallest_normal / 16
    x = torch.full((2, 4), smallest, dtype=dtype)
    x[1] = 1
    x.requires_grad_()
    y = sum_normalize(x)
    y.backward(torch.tensor([[1.0, 2, 3, 4]] * 2, dtype=dtype))
    assert y[0].tolist() == [0, 0, 0, 0] and x.grad[0].tolist() == [0, 0, 0, 0]
    assert y[1].tolist() == [0.25] * 4 and x.grad[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sum_normalize_just_above_the_guard_has_finite_gradients(dtype):
    x = torch.full((1, 4), torch.finfo(dtype).smallest_normal, dtype=dtype, requires_grad=True)
    y = sum_normalize(x)
    y.backward(torch.tensor([[1.0, 0, 0, 0]], dtype=dtype))
    assert y.tolist() == [[0.25] * 4] and x.grad.isfinite().all()


def test_zero_and_far_away_inputs_survive_feature_map_and_normalisation():
    omega = favor_random_matrix(8, 16)
    for x in (torch.zeros(2, 8), torch.full((2, 8), 100.0), torch.tensor([[1.0] + [0.0] * 7])):
        for phi in (lambda x: dpfp_feature_map(x, 1), lambda x: favor_feature_map(x, omega)):
            x = x.detach().requires_grad_()
            y = sum_normalize(phi(x))
            y.square().sum().backward()
            assert y.isfinite().all() and x.grad.isfinite().all()


def test_sum_normalize_does_not_hide_nan():
    assert sum_normalize(torch.tensor([1.0, math.nan])).isnan().all()


@pytest.mark.parametrize(
    "message, call",
    [
        ("nu: expected an integer >= 1, got 0", lambda: dpfp_feature_map(torch.ones(3), 0)),
        ("nu: expected an integer >= 1, got 1.5", lambda: dpfp_feature_map(torch.ones(3), 1.5)),
        ("m: expected an integer >= 1, got -2", lambda: favor_random_matrix(4, -2)),
        ("d: expected an integer >= 1, got 0", lambda: favor_random_matrix(0, 2)),
        (r"omega: expected shape \(d, m\) = \(3, m >= 1\).*got \(4, 2\)",
         lambda: favor_feature_map(torch.ones(3), torch.ones(4, 2))),
        (r"omega: .*got \(3, 0\)", lambda: favor_feature_map(torch.ones(3), torch.ones(3, 0))),
    ],
)
def test_bad_input(message, call):
    with pytest.raises(ValueError, match=message):
        call()
