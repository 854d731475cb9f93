"""Random orthonormal directions of a layer's noise, and draws along one of them at a time."""

from __future__ import annotations

import torch
from torch import Tensor

FEWEST_DRAWS = 32  # for which directions are kept


class NoiseBasis:
    """Orthonormal directions of the noise of a layer, and the draws that are made along them.

    Args:
        rank: R, the number of directions.
        generator: Source of randomness.
    """

    def __init__(self, rank: int, generator: torch.Generator) -> None:
        gaussian = torch.randn(rank, rank, generator=generator, dtype=torch.float64)
        basis, triangle = torch.linalg.qr(gaussian)
        # With these signs uniformly distributed over all bases (Mezzadri, 2007).
        self.basis = basis * triangle.diagonal().sign()  # (R, R), a direction in each row
        self._generator = generator
        self._lengths: list[float] = []

    def length(self, draw: int) -> float:
        """Return the signed length of the noise of a draw."""
        rank = len(self.basis)
        while draw >= len(self._lengths):
            shape = max(FEWEST_DRAWS, rank), rank + 1
            z = torch.randn(shape, generator=self._generator, dtype=torch.float64)
            self._lengths += (z[:, 1:].norm(dim=1) * z[:, 0].sign()).tolist()
        return self._lengths[draw]

    def row(self, draw: int) -> int:
        """Return the direction whose turn it is."""
        return draw % len(self.basis)

    def noise(self, first: int, count: int, like: Tensor) -> Tensor:
        """Return the noise z of some draws, of shape (count, R)."""
        draws = range(first, first + count)
        noise = torch.stack([self.length(draw) * self.basis[self.row(draw)] for draw in draws])
        return noise.to(like)


def block_draws(rank: int) -> int:
    """Return for how many draws directions are kept: at least two turns of each."""
    return max(FEWEST_DRAWS, 2 * rank)
