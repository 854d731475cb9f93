"""Low-rank covariance plus independent noise for every parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from tacit import _checks
from tacit.covariance.base import Covariance, Factor, Shapes, check_rank, rates_by_rank
from tacit.covariance.diagonal import Diagonal
from tacit.covariance.low_rank import LowRank


@dataclass(frozen=True)
class LowRankPlusDiagonal(Covariance):
    """The sum of a low-rank and a diagonal covariance: S = [S_low, diag(s)].

    Never singular while no s_p is zero, so the KL divergence between two of them is finite. Each
    part starts with half of the variance. The factors are named `weight` (low rank, as in
    `LowRank`) and `weight_diagonal`.

    Args:
        rank: Number of directions of the low-rank part.
        scale: Initial standard deviation of a weight, relative to its parametrization's.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(8, 4), {"": LowRankPlusDiagonal(3)})
        >>> model.factors.weight.shape, model.factors.weight_diagonal.shape
        (torch.Size([3, 4, 8]), torch.Size([4, 8]))
    """

    rank: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        _checks.positive_integer("LowRankPlusDiagonal(rank)", self.rank)
        _checks.positive_number("LowRankPlusDiagonal(scale)", self.scale)

    def factors(self, shapes: Shapes) -> dict[str, Factor]:
        check_rank("LowRankPlusDiagonal", self.rank, shapes)
        low = self._low.factors(shapes)
        diagonal = _suffixed(Diagonal().factors(shapes))
        return {name: replace(factor, variance=0.5) for name, factor in {**low, **diagonal}.items()}

    def noise_size(self, shapes: Shapes) -> int:
        return self.rank + Diagonal().noise_size(shapes)

    def apply(self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        low = self._low.apply(factors, z[..., : self.rank], shapes)
        diagonal = Diagonal().apply(_unsuffixed(factors, shapes), z[..., self.rank :], shapes)
        return {name: low[name] + diagonal[name] for name in shapes}

    def trace(self, factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
        diagonal = Diagonal().trace(_unsuffixed(factors, shapes), shapes)
        return self._low.trace(factors, shapes) + diagonal

    def learning_rates(
        self, shapes: Shapes, scales: Mapping[str, float], rates: Mapping[str, float], family: str
    ) -> dict[str, float]:
        return rates_by_rank(self.factors(shapes), rates, family)

    @property
    def _low(self) -> LowRank:
        return LowRank(self.rank)


def _suffixed(factors: Mapping[str, Factor]) -> dict[str, Factor]:
    return {f"{name}_diagonal": factor for name, factor in factors.items()}


def _unsuffixed(factors: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
    return {name: factors[f"{name}_diagonal"] for name in shapes}
