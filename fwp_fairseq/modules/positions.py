"""Sinusoidal positions counted down (Vaswani et al. 2017): absolute ones as the authors' language models have them,
and the distances of Transformer-XL."""

import torch


def sinusoidal_positions(length: int, d_model: int, device=None, clamp_len: int = -1):
    """(length, d_model) in float32: [sin | cos] of position times 10000^(-2i/d_model); the last position is 0.

    Positions above `clamp_len` become `clamp_len`, unless it is -1.
    """
    position = torch.arange(length - 1, -1, -1, dtype=torch.float32, device=device)
    if clamp_len >= 0:
        position = position.clamp(max=clamp_len)
    frequency = 10000 ** (-torch.arange(0, d_model, 2, dtype=torch.float32, device=device) / d_model)
    angle = position[:, None] * frequency
    return torch.cat((angle.sin(), angle.cos()), dim=-1)
