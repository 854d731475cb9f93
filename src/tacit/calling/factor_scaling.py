"""Initial scales and learning rates of a variational model's means and factors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from torch import nn

from tacit._support import checks
from tacit._support.names import join
from tacit.likelihood import Likelihood
from tacit.scaling import (
    GroupEntry,
    Parametrization,
    Parametrized,
    ScalingRow,
    group_parameters,
    optimizer_family,
)
from tacit.scaling.description import scaling_rows
from tacit.weights.distribution import Distribution
from tacit.weights.layers import RandomLayer


class FactorScaling(nn.Module, Parametrized):
    """A module of means and factors, with the initial scales and learning rates of both.

    The parametrization sets the initial scale and the learning rate of a mean; the covariance of
    its layer derives those of the factors from them.
    """

    module: nn.Module
    layers: tuple[RandomLayer, ...]
    parametrization: Parametrization
    likelihood: Likelihood | None

    @property
    @abstractmethod
    def distributions(self) -> Mapping[str, Distribution]:
        """The distributions of the random layers, by the layers' labels."""

    def scales(self) -> dict[str, dict[str, float]]:
        """Return the parametrization's initial standard deviations: label -> tensor -> value."""
        scaled = self.parametrization.parameters_of(self.module)
        stds = {
            id(parameter): self.parametrization.std(scaled[name])
            for name, parameter in self.module.named_parameters()
        }
        return {
            label: {name: stds[id(mean)] for name, mean in distribution.mean.items()}
            for label, distribution in self.distributions.items()
        }

    def param_groups(
        self,
        lr: float,
        optimizer: str = "sgd",
        *,
        weight_decay: float = 0.0,
        factor_speed: float | None = None,
    ) -> list[dict[str, Any]]:
        """Return parameter groups for an optimizer: every parameter once, with its learning rate.

        The parametrization multiplies the learning rate of a mean by a factor; the covariance
        derives the learning rates of its factors from that of the mean. For a low-rank factor it
        divides by the rank under SGD, and by its square root under Adam.

        Args:
            lr: Base learning rate, before scaling by the parametrization.
            optimizer: The name of the optimizer: "sgd", "adam", "adamw" and others.
            weight_decay: Weight decay of the means. Factors have none: it would shrink the prior.
            factor_speed: How fast the prior is forgotten: the learning rate of the factors relative
                to the scaling above. The `speed` of each covariance if left out: 1 as in the paper,
                and 0.01 for `tacit.Relative`. 0 keeps the prior's factors.

        Raises:
            ValueError: If the optimizer's scaling is unknown, or a parameter is in no group.
        """
        if factor_speed is not None:
            factor_speed = checks.nonnegative_number("factor_speed", factor_speed)
        return group_parameters(self.entries(optimizer, factor_speed), self, lr, weight_decay)

    def entries(self, optimizer: str, factor_speed: float | None = None) -> Iterator[GroupEntry]:
        """Yield every parameter with its learning-rate factor: means, factors, likelihood."""
        family = optimizer_family(optimizer)
        scaled = self.parametrization.parameters_of(self.module)
        rates, widths = {}, {}
        for name, parameter in self.module.named_parameters():
            rates[id(parameter)] = self.parametrization.learning_rate(scaled[name], optimizer)
            # Adam's rate falls with the number of inputs where that grows with the width.
            widths[id(parameter)] = 1 / self.parametrization.learning_rate(scaled[name], "adam")
            yield GroupEntry("means", f"module.{name}", parameter, rates[id(parameter)], decay=True)
        scales = self.scales()
        for layer, distribution in zip(self.layers, self.distributions.values(), strict=True):
            given = layer.covariance.learning_rates(
                layer.shapes,
                scales[layer.label],
                {name: rates[id(mean)] for name, mean in distribution.mean.items()},
                family,
            )
            speed = layer.covariance.speed if factor_speed is None else factor_speed
            for name, factor in distribution.factors.items():
                label = join("factors", join(layer.name, name))
                rate = speed * given[name]
                if layer.factors[name].per_unit and family == "sgd":
                    rate *= widths[id(distribution.mean[name])]
                parameter = cast(nn.Parameter, factor)
                yield GroupEntry("factors", label, parameter, rate, decay=False)
        if self.likelihood is not None:
            for name, parameter in self.likelihood.named_parameters():
                yield GroupEntry("likelihood", f"likelihood.{name}", parameter, 1.0, decay=False)

    def scaling_rows(self) -> list[ScalingRow]:
        """Return the rows of `describe`; a factor has the role and fans of its mean."""
        rows, means = {}, {}  # means by id: a tied parameter has several names
        for row in scaling_rows(self.module, self.parametrization):
            means[id(self.module.get_parameter(row.name))] = row
            rows[f"module.{row.name}"] = replace(row, name=f"module.{row.name}")
        sgd, adam = ({entry.name: entry for entry in self.entries(o)} for o in ("sgd", "adam"))
        scales = self.scales()
        for layer in self.layers:
            for name, factor in layer.factors.items():
                label = join("factors", join(layer.name, name))
                mean = factor.tensor or next(iter(layer.shapes))
                of = means[id(self.module.get_parameter(layer.parameters[mean]))]
                scale = scales[layer.label][mean] * layer.covariance.scale if factor.tensor else 1.0
                std = scale * (factor.variance / factor.rank) ** 0.5
                rates = (sgd[label].factor, adam[label].factor)
                rows[label] = ScalingRow(
                    label, factor.shape, of.role, of.fan_in, of.fan_out, std, *rates
                )
        return list(rows.values())
