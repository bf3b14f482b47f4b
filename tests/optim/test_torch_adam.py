"""The optimizer against the equations of Kingma & Ba (2015), through fairseq's interface."""

import torch

from fwp_fairseq.optim.torch_adam import TorchAdam, TorchAdamConfig


def by_the_equations(parameter, gradients, lr, betas, eps, decay):
    first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)
    for t, gradient in enumerate(gradients, 1):
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        step = first / (1 - betas[0] ** t) / ((second / (1 - betas[1] ** t)).sqrt() + eps)
        parameter = parameter - lr * (step + decay * parameter)
    return parameter


def test_steps_are_those_of_the_equations():
    torch.manual_seed(1)
    start = torch.randn(5, 3, dtype=torch.float64)
    gradients = torch.randn(4, 5, 3, dtype=torch.float64)
    for settings in ({}, {"adam_betas": [0.9, 0.98], "adam_eps": 1e-3}, {"adam_betas": "(0.8, 0.9)", "weight_decay": 0.3}):
        parameter = torch.nn.Parameter(start.clone())
        optimizer = TorchAdam(TorchAdamConfig(lr=[0.1], **settings), [parameter])
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
        betas = (0.8, 0.9) if "weight_decay" in settings else tuple(settings.get("adam_betas", (0.9, 0.999)))
        eps, decay = settings.get("adam_eps", 1e-8), settings.get("weight_decay", 0.0)
        torch.testing.assert_close(parameter.data, by_the_equations(start, gradients, 0.1, betas, eps, decay))
