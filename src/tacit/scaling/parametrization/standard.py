"""The standard parametrization: PyTorch's own, up to constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tacit.scaling.optimizers import optimizer_family
from tacit.scaling.parametrization.base import Parametrization
from tacit.scaling.parametrization.roles import Role, ScaledParameter


@dataclass(frozen=True)
class Standard(Parametrization):
    """SP: variance 1/fan_in, the same learning rate for all parameters.

    The best learning rate decreases with width, and the features of a wide network hardly change.

    Args:
        roles: Roles set explicitly; shown by `describe`, without effect on the scaling.
    """

    roles: Mapping[str, Role] = field(default_factory=dict)

    def std(self, parameter: ScaledParameter) -> float:
        return parameter.fans.scale

    def learning_rate(self, parameter: ScaledParameter, optimizer: str) -> float:
        optimizer_family(optimizer)
        return 1.0
