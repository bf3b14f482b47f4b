"""Absolute sinusoidal positions as the authors' language models have them (Vaswani et al. 2017, counted down)."""

import torch


def sinusoidal_positions(length: int, d_model: int, device=None):
    """(length, d_model) in float32: [sin | cos] of position times 10000^(-2i/d_model); the last position is 0."""
    position = torch.arange(length - 1, -1, -1, dtype=torch.float32, device=device)
    frequency = 10000 ** (-torch.arange(0, d_model, 2, dtype=torch.float32, device=device) / d_model)
    angle = position[:, None] * frequency
    return torch.cat((angle.sin(), angle.cos()), dim=-1)
