"""Sample paths of several outputs, and boxes that contain whole paths."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tacit._support import checks
from tacit.likelihood.predictive.noise_shapes import NORMAL, NoiseShape

BLOCK = 2**22  # entries of the sample paths held at a time; 16 MB in single precision


class Box(NamedTuple):
    """Intervals of all outputs, each (B, ...).

    Args:
        middle: Medians.
        below: Widths below the medians, above 0.
        above: Widths above the medians, above 0.
    """

    middle: Tensor
    below: Tensor
    above: Tensor


def sample(
    means: Tensor,
    scales: Tensor,
    n: int,
    generator: torch.Generator | None,
    noise: NoiseShape = NORMAL,
) -> Tensor:
    """Return n paths, (n, B, ...), each of one function with independent noise.

    Args:
        means: Predictions of M functions, (M, B, ...).
        scales: Scales of their noise, of the same shape.
        n: Number of paths. They use all functions equally often, up to one path.
        generator: Source of randomness.
        noise: Shape of the noise.
    """
    rounds = -(-checks.positive_integer("n", n) // len(means))
    device = means.device
    orders = [torch.randperm(len(means), generator=generator, device=device) for _ in range(rounds)]
    functions = torch.cat(orders)[:n]
    return means[functions] + scales[functions] * noise.sample(means[functions], generator)


class Paths(Protocol):
    """Predictive distributions with sample paths, `RegressionPredictive`."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def __getitem__(self, index: slice) -> Paths:
        """Return some of the examples."""

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Return n paths, (n, B, ...)."""


def widened(
    box: Box, prediction: Paths, level: float, draws: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Return intervals, scaled by one factor for each example, that contain whole paths.

    The factor of a path is the smallest with which the whole path lies inside. The factor of an
    example is the smallest that suffices for the share `level` of its paths.

    Args:
        box: Intervals to scale.
        prediction: Predictions of the B examples.
        level: Share of the paths.
        draws: Number of paths.
        generator: Source of randomness.

    Returns:
        Lower and upper bounds, each (B, ...).
    """
    size = max(1, BLOCK // (draws * max(1, box.middle[:1].numel())))
    rank = math.ceil(draws * level - 1e-9)
    found = []
    for start in range(0, len(prediction), size):
        rows = slice(start, start + size)
        drawn = prediction[rows].sample(draws, generator=generator)
        factors = _factors(drawn, Box(*(part[rows] for part in box)))
        found.append(factors.kthvalue(rank, dim=0).values)
    factor = torch.cat(found) if found else box.middle.new_zeros(0)
    factor = factor.reshape(-1, *[1] * (box.middle.ndim - 1))
    return box.middle - factor * box.below, box.middle + factor * box.above


def _factors(drawn: Tensor, box: Box) -> Tensor:
    """Return the smallest factor with which each path lies inside the scaled box, (n, B)."""
    distance = drawn - box.middle
    ratios = torch.where(distance < 0, -distance / box.below, distance / box.above)
    return ratios.flatten(2).amax(2)
