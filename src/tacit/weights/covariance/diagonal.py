"""Diagonal covariance: independent parameters, the mean-field family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit._support import checks
from tacit.weights.covariance.base import Covariance, Factor, Shapes, parameter_count, rates_by_rank
from tacit.weights.covariance.dense import vector


@dataclass(frozen=True)
class Diagonal(Covariance):
    """A diagonal factor S: every parameter has its own noise, w_p = mean_p + s_p z_p.

    The s_p are the standard deviations up to sign. They are trained directly, without a softplus or
    an exponential, because the theory is about gradient descent on S itself.

    Args:
        scale: Initial standard deviation of a weight, relative to its parametrization's.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(16, 4), {"": Diagonal()})
        >>> model.factors.bias
        Parameter containing:
        tensor([0.2500, 0.2500, 0.2500, 0.2500], requires_grad=True)
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", checks.positive_number("Diagonal(scale)", self.scale))

    def factors(self, shapes: Shapes) -> dict[str, Factor]:
        return {name: Factor(tuple(shapes[name]), name, random=False) for name in shapes}

    def noise_size(self, shapes: Shapes) -> int:
        return parameter_count(shapes)

    def apply(self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        parts = z.split([shape.numel() for shape in shapes.values()], dim=-1)
        return {
            name: factors[name] * part.reshape((*z.shape[:-1], *shapes[name]))
            for name, part in zip(shapes, parts, strict=True)
        }

    def trace(self, factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
        return torch.stack([factors[name].square().sum() for name in shapes]).sum()

    def squared_distance(
        self, factors: Mapping[str, Tensor], others: Mapping[str, Tensor], shapes: Shapes
    ) -> Tensor:
        return (vector(factors, shapes).abs() - vector(others, shapes).abs()).square().sum()

    def kl(
        self,
        difference: Mapping[str, Tensor],
        factors: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        shapes: Shapes,
    ) -> Tensor:
        s0 = vector(others, shapes)
        ratio, d = vector(factors, shapes) / s0, vector(difference, shapes) / s0
        return ((ratio.square() + d.square() - 1) / 2 - ratio.abs().log()).sum()

    def output_variance(
        self, factors: Mapping[str, Tensor], features: Tensor, shapes: Shapes
    ) -> Tensor:
        variance = features.new_zeros(())
        if "weight" in shapes:
            variance = variance + features.square() @ factors["weight"].square().T
        if "bias" in shapes:
            variance = variance + factors["bias"].square()
        return variance.expand(len(features), -1)

    def learning_rates(
        self, shapes: Shapes, scales: Mapping[str, float], rates: Mapping[str, float], family: str
    ) -> dict[str, float]:
        return rates_by_rank(self.factors(shapes), rates, family)


@dataclass(frozen=True)
class PositiveDiagonal(Diagonal):
    """A diagonal factor S that is trained as log s_p, for objectives with a KL divergence.

    Trained directly, standard deviations can cross 0, where the KL divergence is infinite and its
    gradient explodes.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(16, 4), {"": PositiveDiagonal()})
        >>> model.factors.bias.exp()
        tensor([0.2500, 0.2500, 0.2500, 0.2500], grad_fn=<ExpBackward0>)
    """

    def apply(self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        return super().apply(_exp(factors), z, shapes)

    def trace(self, factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
        return super().trace(_exp(factors), shapes)

    def squared_distance(
        self, factors: Mapping[str, Tensor], others: Mapping[str, Tensor], shapes: Shapes
    ) -> Tensor:
        return super().squared_distance(_exp(factors), _exp(others), shapes)

    def kl(
        self,
        difference: Mapping[str, Tensor],
        factors: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        shapes: Shapes,
    ) -> Tensor:
        return super().kl(difference, _exp(factors), _exp(others), shapes)

    def output_variance(
        self, factors: Mapping[str, Tensor], features: Tensor, shapes: Shapes
    ) -> Tensor:
        return super().output_variance(_exp(factors), features, shapes)

    def learning_rates(
        self, shapes: Shapes, scales: Mapping[str, float], rates: Mapping[str, float], family: str
    ) -> dict[str, float]:
        # The gradient in log s is s times that in s. Dividing by the initial s undoes this at the
        # start of training. A step in s is then still s times that of `Diagonal`: with equal steps,
        # noisy gradients drove the standard deviations of a LeNet-5 out of range in some epochs.
        plain = super().learning_rates(shapes, scales, rates, family)
        if family != "sgd":
            return plain
        return {name: rate / (self.scale * scales[name]) for name, rate in plain.items()}

    def initialize(
        self,
        factors: Mapping[str, Tensor],
        scales: Mapping[str, float],
        shapes: Shapes,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().initialize(factors, scales, shapes, generator=generator)
        with torch.no_grad():
            for factor in factors.values():
                factor.log_()


def _exp(factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: factor.exp() for name, factor in factors.items()}
