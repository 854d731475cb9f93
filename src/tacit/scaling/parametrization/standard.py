"""The standard parametrization: PyTorch's own, up to constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from tacit.scaling.optimizers import optimizer_family
from tacit.scaling.parametrization.base import Parametrization
from tacit.scaling.parametrization.roles import Role, ScaledParameter


@dataclass(frozen=True)
class Standard(Parametrization):
    """SP: variance 1/fan_in, the same learning rate for all parameters.

    The best learning rate decreases with width, and the features of a wide network hardly change.

    Args:
        roles: Roles set explicitly; shown by `describe`, without effect on the scaling.

    Examples:
        >>> import tacit
        >>> net = tacit.models.MLP(16, [256], 4)
        >>> [(row.name, row.std, row.sgd) for row in tacit.describe(net) if "weight" in row.name]
        [('1.weight', 0.25, 1.0), ('3.weight', 0.0625, 1.0)]
    """

    roles: Mapping[str, Role] = field(default_factory=dict)

    def std(self, parameter: ScaledParameter) -> float:
        return parameter.fans.scale

    def learning_rate(self, parameter: ScaledParameter, optimizer: str) -> float:
        optimizer_family(optimizer)
        return 1.0


def given_or_standard(
    caller: str, net: nn.Module, parametrization: Parametrization | None
) -> Parametrization:
    """Return the parametrization of a plain network, `Standard()` if none is given.

    Raises:
        TypeError: If an argument has the wrong type; the message begins with `caller`.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"{caller}: expected a network (an nn.Module), received {net!r}.")
    if parametrization is None:
        return Standard()
    if not isinstance(parametrization, Parametrization):
        raise TypeError(
            f"{caller}: expected a parametrization, tacit.Standard(), MaximalUpdate() or "
            f"NeuralTangent(), received {parametrization!r}."
        )
    return parametrization
