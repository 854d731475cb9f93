"""Low-rank covariance: the paper's choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit import _checks
from tacit.covariance.base import Covariance, Factor, Shapes, check_rank, rates_by_rank


@dataclass(frozen=True)
class LowRank(Covariance):
    """A dense factor S with few columns: w = mean + sum_r z_r s_r.

    Column s_r is a direction in the space of the layer's weight and bias, and is stored with their
    shapes, rank first: (R, *shape). All tensors of the layer share z, so they are jointly
    distributed. Costs R times the layer's parameters.

    Args:
        rank: Number of directions R, at most the number of parameters.
        scale: Initial standard deviation of a weight, relative to its parametrization's.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(8, 4), {"": LowRank(3)})
        >>> model.factors.weight.shape
        torch.Size([3, 4, 8])
    """

    rank: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        _checks.positive_integer("LowRank(rank)", self.rank)
        _checks.positive_number("LowRank(scale)", self.scale)

    def factors(self, shapes: Shapes) -> dict[str, Factor]:
        check_rank("LowRank", self.rank, shapes)
        return {name: Factor((self.rank, *shapes[name]), name, self.rank) for name in shapes}

    def noise_size(self, shapes: Shapes) -> int:
        return self.rank

    def apply(self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        return {name: contract(z, factors[name]) for name in shapes}

    def trace(self, factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
        return torch.stack([factors[name].square().sum() for name in shapes]).sum()

    def learning_rates(
        self, shapes: Shapes, scales: Mapping[str, float], rates: Mapping[str, float], family: str
    ) -> dict[str, float]:
        return rates_by_rank(self.factors(shapes), rates, family)


def contract(z: Tensor, factor: Tensor) -> Tensor:
    """Return the sum over r of z_r factor_r: (*sample, R) and (R, *shape) give (*sample, *shape).

    Rank first makes this one matrix product without a transpose: measured on an MLP
    784-512-512-10, a training step is 8 % faster than with rank last. Twice as fast as
    torch.tensordot on small layers, where its overhead counts.
    """
    flat = z.reshape(-1, z.shape[-1]) @ factor.reshape(z.shape[-1], -1)
    return flat.reshape((*z.shape[:-1], *factor.shape[1:]))
