"""Relative noise: every input unit of a layer is multiplied by its own noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit._support.private_torch import ConvTranspose
from tacit.weights.covariance.activation import Scaled
from tacit.weights.covariance.base import Covariance, Factor, Shapes, singular_error

SPEED = 0.01  # learning rate of s relative to the base learning rate


@dataclass(frozen=True)
class Relative(Covariance):
    """Noise in proportion to the weights: w = mean (1 + s z), one z and one s per input unit.

    In activation space this is dropout whose rates train: `layer(x * (1 + s z))` with an own z for
    every example, at the price of one multiplication. Column j of S is s_j times the weights that
    leave unit j, so the covariance moves with the mean, has one number per unit, and leaves
    a pretrained network as uncertain as its weights are large. Biases and other vectors stay
    deterministic.

    The s_j are trained directly, like the factors of other structures, and no penalty keeps them
    from 0. They train at `speed` times the rate of the means: at 1 they would shrink within a few
    epochs, long before the means are trained, and the noise would no longer regularize them.

    Args:
        scale: Initial s: the standard deviation of a weight relative to its mean.
        speed: Learning rate of s relative to the base learning rate, before it is scaled with the
            width; 0 keeps s.
        axis: Dimension of the weight that runs over input units; taken from the layer.
        groups: Number of groups of a convolution; taken from the layer.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(3, 4), {"": Relative(0.5)})
        >>> model.factors.weight
        Parameter containing:
        tensor([0.5000, 0.5000, 0.5000], requires_grad=True)
    """

    scale: float = 0.3
    speed: float = SPEED
    axis: int | None = None
    groups: int = 1
    acts_on_activations = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", checks.positive_number("Relative(scale)", self.scale))
        object.__setattr__(self, "speed", checks.nonnegative_number("Relative(speed)", self.speed))
        object.__setattr__(self, "groups", checks.positive_integer("Relative(groups)", self.groups))
        if self.axis not in (None, 0, 1):
            raise ValueError(f"Relative(axis): expected 0 or 1, received {self.axis!r}.")

    def fitted(self, layer: nn.Module) -> Relative:
        if self.axis is not None:
            return self
        # Transposed convolutions and Hugging Face's linear layer store inputs first.
        inputs_first = isinstance(layer, ConvTranspose) or type(layer).__name__ == "Conv1D"
        groups = 1 if inputs_first else getattr(layer, "groups", 1)
        return replace(self, axis=0 if inputs_first else 1, groups=groups)

    def factors(self, shapes: Shapes) -> dict[str, Factor]:
        if not any(len(shape) > 1 for shape in shapes.values()):
            listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
            raise ValueError(f"Relative: expected a weight of two dimensions, received {listed}.")
        for name, shape in shapes.items():
            if len(shape) > 1 and not self._inputs_first and shape[0] % self.groups:
                raise ValueError(
                    f"Relative: expected a number of groups that divides the {shape[0]} outputs of "
                    f"{name}, received {self.groups}. Set axis and groups of Relative."
                )
        return {
            name: Factor(
                (self._units(shape),), None, variance=self.scale**2, random=False, per_unit=True
            )
            for name, shape in shapes.items()
            if len(shape) > 1
        }

    def noisy_tensors(self, shapes: Shapes) -> list[str]:
        return [name for name, shape in shapes.items() if len(shape) > 1]

    def noise_size(self, shapes: Shapes) -> int:
        return sum(self._units(shape) for shape in shapes.values() if len(shape) > 1)

    def resolve(
        self, mean: Mapping[str, Tensor], factors: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the nonzero entries of S: s_j times the mean, in the shape of the weight."""
        return {name: mean[name] * self._spread(s, mean[name].shape) for name, s in factors.items()}

    def apply(self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        parts = self._parts(z, shapes)
        return {
            name: factors[name] * self._spread(parts[name], shape)
            if name in parts
            else next(iter(factors.values())).new_zeros((*z.shape[:-1], *shape))
            for name, shape in shapes.items()
        }

    def shift(
        self, mean: Mapping[str, Tensor], factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes
    ) -> dict[str, Tensor]:
        parts = self._parts(z, shapes)
        return {
            name: tensor * self._spread(1 + factors[name] * parts[name], tensor.shape)
            if name in parts
            else tensor.expand(*z.shape[:-1], *tensor.shape).clone()
            for name, tensor in mean.items()
        }

    def in_activation_space(
        self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes
    ) -> dict[str, Scaled]:
        axis = 0 if self._inputs_first else 1
        return {
            name: Scaled(torch.addcmul(z.new_ones(()), factors[name], part), axis)
            for name, part in self._parts(z, shapes).items()
        }

    def flip_columns(
        self, factors: Mapping[str, Tensor], signs: Tensor, shapes: Shapes
    ) -> dict[str, Tensor]:
        return {name: factors[name] * part for name, part in self._parts(signs, shapes).items()}

    def trace(self, factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
        return torch.stack([factor.square().sum() for factor in factors.values()]).sum()

    def squared_distance(
        self, factors: Mapping[str, Tensor], others: Mapping[str, Tensor], shapes: Shapes
    ) -> Tensor:
        # S0^T S is diagonal, so the closest rotation changes signs of columns.
        distance = torch.zeros_like(self.trace(factors, shapes))
        for name, S in factors.items():
            sign = self._by_unit(S * others[name]).sign()
            S0 = others[name] * self._spread(sign + (sign == 0), shapes[name])
            distance = distance + (S - S0).square().sum()
        return distance

    def kl(
        self,
        difference: Mapping[str, Tensor],
        factors: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        shapes: Shapes,
    ) -> Tensor:
        raise singular_error(self, shapes)

    def output_variance(
        self, factors: Mapping[str, Tensor], features: Tensor, shapes: Shapes
    ) -> Tensor:
        S = factors["weight"]
        if self._inputs_first:  # a column of S holds the weights of one output
            return (features @ S.T).square()
        return features.square() @ S.square().T

    def learning_rates(
        self, shapes: Shapes, scales: Mapping[str, float], rates: Mapping[str, float], family: str
    ) -> dict[str, float]:
        return dict.fromkeys(self.factors(shapes), 1.0)

    @property
    def _inputs_first(self) -> bool:
        return self.axis == 0

    def _units(self, shape: torch.Size) -> int:
        return int(shape[0] if self._inputs_first else shape[1] * self.groups)

    def _parts(self, z: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        """Return the noise of each weight, (*sample, units)."""
        weights = {name: shape for name, shape in shapes.items() if len(shape) > 1}
        if len(weights) == 1:
            return dict.fromkeys(weights, z)
        parts = z.split([self._units(shape) for shape in weights.values()], dim=-1)
        return dict(zip(weights, parts, strict=True))

    def _spread(self, values: Tensor, shape: torch.Size) -> Tensor:
        """Return values by unit, (*sample, units), in a shape that multiplies a weight."""
        if self._inputs_first:
            rows = values.unsqueeze(-1)
        elif self.groups == 1:
            rows = values.unsqueeze(-2)
        else:  # the units of a group multiply its rows of the weight
            by_group = values.unflatten(-1, (self.groups, shape[1]))
            rows = by_group.repeat_interleave(shape[0] // self.groups, dim=-2)
        return rows.view(*rows.shape, *[1] * (len(shape) - 2))

    def _by_unit(self, weight: Tensor) -> Tensor:
        """Return the sum of a weight's entries by unit."""
        entries: Tensor = weight.flatten(2).sum(2) if weight.ndim > 2 else weight
        if self._inputs_first:
            return entries.sum(1)
        by_group: Tensor = entries.unflatten(0, (self.groups, -1))
        return by_group.sum(1).flatten()
