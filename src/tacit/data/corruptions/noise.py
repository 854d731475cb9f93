"""Pixel noise: Gaussian, shot and impulse noise."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.data.corruptions import sampling


def gaussian_noise(x: Tensor, generator: torch.Generator, scale: float) -> Tensor:
    """Add Gaussian noise with standard deviation `scale`, as in low light."""
    return x + scale * sampling.normal(tuple(x.shape), x, generator)


def shot_noise(x: Tensor, generator: torch.Generator, photons: float) -> Tensor:
    """Draw Poisson photon counts, with a mean of `photons` for a white pixel."""
    return torch.poisson(x * photons, generator=generator) / photons


def impulse_noise(x: Tensor, generator: torch.Generator, amount: float) -> Tensor:
    """Set a fraction of the values to 0 or 1."""
    chance = torch.rand(x.shape, generator=generator, device=x.device)
    found = torch.where(chance < amount / 2, torch.ones_like(x), x)
    return torch.where((chance >= amount / 2) & (chance < amount), torch.zeros_like(x), found)
