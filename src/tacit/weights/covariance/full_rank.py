"""Full covariance: every pair of a layer's parameters may be correlated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tacit._support import checks
from tacit.weights.covariance.base import Covariance, Factor, Shapes, parameter_count, rates_by_rank
from tacit.weights.covariance.low_rank import LowRank


@dataclass(frozen=True)
class FullRank(Covariance):
    """A square dense factor S: `LowRank` with as many directions as parameters.

    Takes memory quadratic in the layer's parameters, so large layers are refused.

    Args:
        scale: Initial standard deviation of a weight, relative to its parametrization's.
        max_gigabytes: Largest allowed size of the factor in single precision. Training takes about
            three times as much: the factor, its gradient and the optimizer's momentum.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(8, 4), {"": FullRank()})
        >>> model.factors.weight.shape
        torch.Size([36, 4, 8])
    """

    scale: float = 1.0
    max_gigabytes: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", checks.positive_number("FullRank(scale)", self.scale))
        object.__setattr__(
            self,
            "max_gigabytes",
            checks.positive_number("FullRank(max_gigabytes)", self.max_gigabytes),
        )

    def factors(self, shapes: Shapes) -> dict[str, Factor]:
        P = parameter_count(shapes)
        gigabytes = 4e-9 * P**2
        if gigabytes > self.max_gigabytes:
            raise ValueError(
                f"FullRank: the factor over {P:,} parameters takes {gigabytes:,.1f} GB in single "
                f"precision, above the limit of {self.max_gigabytes:g} GB. Use LowRank or "
                f"Kronecker, or raise the limit with FullRank(max_gigabytes=...)."
            )
        return self._square(shapes).factors(shapes)

    def noise_size(self, shapes: Shapes) -> int:
        return parameter_count(shapes)

    def apply(self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        return self._square(shapes).apply(factors, z, shapes)

    def trace(self, factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
        return self._square(shapes).trace(factors, shapes)

    def squared_distance(
        self, factors: Mapping[str, Tensor], others: Mapping[str, Tensor], shapes: Shapes
    ) -> Tensor:
        return self._square(shapes).squared_distance(factors, others, shapes)

    def kl(
        self,
        difference: Mapping[str, Tensor],
        factors: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        shapes: Shapes,
    ) -> Tensor:
        return self._square(shapes).kl(difference, factors, others, shapes)

    def output_variance(
        self, factors: Mapping[str, Tensor], features: Tensor, shapes: Shapes
    ) -> Tensor:
        return self._square(shapes).output_variance(factors, features, shapes)

    def learning_rates(
        self, shapes: Shapes, scales: Mapping[str, float], rates: Mapping[str, float], family: str
    ) -> dict[str, float]:
        return rates_by_rank(self.factors(shapes), rates, family)

    def _square(self, shapes: Shapes) -> LowRank:
        return LowRank(parameter_count(shapes), self.scale)
