"""Noise in the pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.data.corruptions import sampling


def gaussian_noise(x: Tensor, generator: torch.Generator, scale: float) -> Tensor:
    """Add noise of a standard deviation, as in the dark."""
    return x + scale * sampling.normal(tuple(x.shape), x, generator)


def shot_noise(x: Tensor, generator: torch.Generator, photons: float) -> Tensor:
    """Count photons: a white pixel has this many on average."""
    return torch.poisson(x * photons, generator=generator) / photons


def impulse_noise(x: Tensor, generator: torch.Generator, amount: float) -> Tensor:
    """Make a share of the values black or white."""
    chance = torch.rand(x.shape, generator=generator, device=x.device)
    found = torch.where(chance < amount / 2, torch.ones_like(x), x)
    return torch.where((chance >= amount / 2) & (chance < amount), torch.zeros_like(x), found)
