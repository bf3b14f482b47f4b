"""One training step as fairseq's trainer makes it, on models that share their weights: for benchmarks of them."""

import torch

from fwp_fairseq.benchmarks.measure import peak_bytes
from fwp_fairseq.optim.torch_adam import TorchAdam, TorchAdamConfig


class TrainingStep:
    """Loss and gradients of `model` on one batch, clipping, Adam; calling it is what is timed.

    Args:
        criterion, optimizer: fairseq's; `sample` is a batch as the criterion takes it
        clip_norm: as `optimization.clip_norm`
    """

    def __init__(self, model, criterion, optimizer, clip_norm, sample):
        self.model, self.criterion, self.sample = model, criterion, sample
        self.optimizer, self.clip_norm = optimizer, clip_norm

    def __call__(self):
        self.update(self.gradients())

    def gradients(self):
        """Forward and backward pass. Returns what the gradients are to be divided by."""
        self.model.train()
        # a copy of the sample, since a criterion may keep in it what the model returned
        loss, sample_size, _ = self.criterion(self.model, dict(self.sample))
        self.optimizer.backward(loss)
        return sample_size

    def update(self, sample_size):
        self.optimizer.multiply_grads(1 / sample_size)
        self.optimizer.clip_grad_norm(self.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def peak_bytes(self, device):
        """Most memory in a step: weights, Adam's two moments, and what the step makes on top of them."""
        weights = sum(weight.numel() * weight.element_size() for weight in self.model.parameters())
        return 3 * weights + peak_bytes(self, device)


def share_weights(models):
    """Give all models the same weights wherever they have weights of the same name, and return all there are.

    What a step costs does not depend on their values, and memory need not hold every row's weights and moments. An
    optimizer over all of them updates those that got a gradient: the ones of the model that was stepped.
    """
    weights = {}
    for model in models:
        for path, module in model.named_modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                setattr(module, name, weights.setdefault((path, name), weight))
    return list({id(weight): weight for weight in weights.values()}.values())


def adam(weights, betas, eps, lr):
    """The optimizer of the recipes, with its moments allocated, as they are at every step but the first."""
    optimizer = TorchAdam(TorchAdamConfig(adam_betas=list(betas), adam_eps=eps, lr=[lr]), weights)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()  # gradients of zero change nothing
    optimizer.zero_grad()
    return optimizer
