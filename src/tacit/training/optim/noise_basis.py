"""A random orthonormal basis for a layer's noise, and draws along one direction at a time."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

MIN_BLOCK_DRAWS = 32  # minimum number of draws along the same basis


class NoiseBasis:
    """Orthonormal directions of a layer's noise, and the draws along them.

    Args:
        rank: R, the number of directions.
        generator: Source of randomness.
    """

    def __init__(self, rank: int, generator: torch.Generator) -> None:
        gaussian = torch.randn(rank, rank, generator=generator, dtype=torch.float64)
        basis, triangle = torch.linalg.qr(gaussian)
        # These signs make the distribution uniform over all bases (Mezzadri, 2007).
        self.basis = basis * triangle.diagonal().sign()  # (R, R), one direction per row
        self._generator = generator
        self._lengths: list[float] = []

    def length(self, draw: int) -> float:
        """Return the signed length of the noise vector of a draw."""
        rank = len(self.basis)
        while draw >= len(self._lengths):
            shape = max(MIN_BLOCK_DRAWS, rank), rank + 1
            z = torch.randn(shape, generator=self._generator, dtype=torch.float64)
            self._lengths += (z[:, 1:].norm(dim=1) * z[:, 0].sign()).tolist()
        return self._lengths[draw]

    def row(self, draw: int) -> int:
        """Return the index of a draw's direction."""
        return draw % len(self.basis)

    def noise(self, draws: Iterable[int], like: Tensor) -> Tensor:
        """Return the noise z of some draws, of shape (draws, R), with the dtype of a tensor."""
        noise = [self.length(draw) * self.basis[self.row(draw)] for draw in draws]
        return torch.stack(noise).to(like)


def block_draws(rank: int) -> int:
    """Return the planned number of draws along one basis: at least two turns per direction."""
    return max(MIN_BLOCK_DRAWS, 2 * rank)
