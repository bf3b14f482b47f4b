"""Inputs and comparisons for the tests of the update rules."""

import torch

from fwp_fairseq.ops import fast_weight_delta, fast_weight_sum, sum_normalize


def make_inputs(rule, batch=2, heads=2, length=20, key_size=8, value_size=5, dtype=torch.float64, seed=0):
    """[q, k, v, state] or, for the delta rule, [q, k, v, beta, state], as a layer would give them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(batch, heads, *shape, generator=generator, dtype=torch.float64)

    q, k = (sum_normalize(draw(length, key_size).exp()) for _ in range(2))
    inputs = [q, k, draw(length, value_size)]
    if rule == "delta":
        inputs.append(draw(length).sigmoid())
    state_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    return [*(x.to(dtype) for x in inputs), draw(key_size, value_size).to(state_dtype)]


def run_rule(rule, inputs, backend):
    function = fast_weight_delta if rule == "delta" else fast_weight_sum
    return function(*inputs, backend=backend)


def outputs_and_gradients(rule, inputs, backend, seed=1):
    """[out, state, gradient of each input] for random gradients of out and state."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    results = run_rule(rule, inputs, backend)
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in results]
    return [y.detach() for y in results] + list(torch.autograd.grad(results, inputs, weights))


def largest_relative_error(results, expected):
    """Over several tensors, each error relative to the largest number of its tensor."""
    return max(
        ((x.double() - y.double()).abs().max() / y.double().abs().max().clamp(min=1e-300)).item()
        for x, y in zip(results, expected, strict=True)
    )
