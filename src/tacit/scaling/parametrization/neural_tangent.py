"""The neural tangent parametrization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tacit.scaling.optimizers import optimizer_family
from tacit.scaling.parametrization.base import Parametrization
from tacit.scaling.parametrization.roles import Role, ScaledParameter


@dataclass(frozen=True)
class NeuralTangent(Parametrization):
    """NTP: weights are fan_in^-1/2 times parameters with initial variance 1.

    The forward multiplier fan_in^-1/2 is absorbed into initialization and learning rate (Lemma J.1
    of Tensor Programs V): the standard deviation is fan_in^-1/2, and the learning rate is divided
    by fan_in under SGD and by its square root under Adam. Outputs then have the same scale at every
    width, and training is that of the network with the multiplier. In the infinite-width limit
    features don't change. Vectors have no multiplier.

    Args:
        roles: Roles set explicitly; shown by `describe`, without effect on the scaling.

    Examples:
        >>> import tacit
        >>> net = tacit.models.MLP(16, [256], 4)
        >>> rows = tacit.describe(net, NeuralTangent())
        >>> [(row.name, row.std, row.sgd) for row in rows if "weight" in row.name]
        [('1.weight', 0.25, 0.0625), ('3.weight', 0.0625, 0.00390625)]
    """

    roles: Mapping[str, Role] = field(default_factory=dict)

    def std(self, parameter: ScaledParameter) -> float:
        return parameter.fans.scale

    def learning_rate(self, parameter: ScaledParameter, optimizer: str) -> float:
        family = optimizer_family(optimizer)
        if parameter.fans.kind not in ("weight", "embedding"):
            return 1.0
        return parameter.fans.scale**2 if family == "sgd" else parameter.fans.scale
