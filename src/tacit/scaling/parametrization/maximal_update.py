"""The maximal update parametrization, muP."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from tacit.scaling.optimizers import optimizer_family
from tacit.scaling.parametrization.base import Parametrization
from tacit.scaling.parametrization.roles import Fans, Role, ScaledParameter, fans_of


@dataclass(frozen=True)
class MaximalUpdate(Parametrization):
    """muP: features change by the same amount at every width, so the best learning rate transfers.

    Without a base, Table 3 of Tensor Programs V:

    | role | variance | learning rate, SGD | learning rate, Adam |
    | --- | --- | --- | --- |
    | input | 1/fan_in | fan_out | 1 |
    | hidden | 1/fan_in | 1 | 1/fan_in |
    | output | 1/fan_in^2 | 1/fan_in | 1/fan_in |
    | vector | 1 | fan_out | 1 |
    | scalar | 1 | 1 | 1 |

    With a base, the table holds relative to it: each fan is replaced by its ratio to that of the
    base, and the variance is that of the standard parametrization at the base width, scaled as in
    the table. At the base width muP equals `Standard`, to the last bit. Hidden weights whose fans
    grow at different rates have the SGD factor fan_out/fan_in.

    Args:
        base: A narrower copy of the same network, or None. With a base, roles are inferred by
            comparing shapes; without one, by position.
        roles: Roles set explicitly: name or glob of a layer or parameter -> role.

    Examples:
        >>> import tacit
        >>> net, base = tacit.models.MLP(16, [256], 4), tacit.models.MLP(16, [64], 4)
        >>> rows = tacit.describe(net, MaximalUpdate(base))  # learning rates relative to width 64
        >>> [(row.name, row.role, row.sgd) for row in rows if "weight" in row.name]
        [('1.weight', 'input', 4.0), ('3.weight', 'output', 0.25)]
        >>> model = tacit.variational(net, parametrization=MaximalUpdate(base))
    """

    base: nn.Module | None = None
    roles: Mapping[str, Role] = field(default_factory=dict)

    def std(self, parameter: ScaledParameter) -> float:
        if parameter.role in ("vector", "scalar"):
            return 1.0 if parameter.base is None else parameter.base.scale
        if parameter.role == "output":
            return parameter.fans.scale / math.sqrt(_fan_in(parameter))
        return parameter.fans.scale

    def learning_rate(self, parameter: ScaledParameter, optimizer: str) -> float:
        family, fan_in, fan_out = (
            optimizer_family(optimizer),
            _fan_in(parameter),
            _fan_out(parameter),
        )
        match parameter.role:
            case "input" | "vector":
                return fan_out if family == "sgd" else 1.0
            case "hidden" if family == "sgd":
                return 1.0 if parameter.base is None else fan_out / fan_in
            case "hidden" | "output":
                return 1.0 / fan_in
            case _:
                return 1.0

    def parameters_of(self, module: nn.Module) -> dict[str, ScaledParameter]:
        _warn_about_tied_embeddings(module)
        if self.base is None:
            return super().parameters_of(module)
        if not isinstance(self.base, nn.Module):
            raise TypeError(
                "MaximalUpdate(base): expected a narrower copy of the network, received "
                f"{type(self.base).__name__}."
            )
        fans, base = fans_of(module), fans_of(self.base)
        if fans.keys() != base.keys():
            odd = sorted(fans.keys() ^ base.keys())
            raise ValueError(
                "MaximalUpdate(base): expected a narrower copy of the same network; only one of "
                f"the two has: {', '.join(odd)}."
            )
        roles = {name: _role_by_growth(fans[name], base[name]) for name in fans}
        return self._with_explicit_roles(fans, roles, base)


def _role_by_growth(fans: Fans, base: Fans) -> Role:
    wider_in, wider_out = fans.fan_in != base.fan_in, fans.fan_out != base.fan_out
    if fans.kind not in ("weight", "embedding"):
        return "vector" if wider_out else "scalar"
    match wider_in, wider_out:
        case True, True:
            return "hidden"
        case True, False:
            return "output"
        case False, True:
            return "input"
        case _:
            return "scalar"


def _warn_about_tied_embeddings(module: nn.Module) -> None:
    """Warn if an output layer shares its weight with an embedding: it can have only one role."""
    layers = [*module.named_modules()]
    embeddings = {id(p.weight): name for name, p in layers if isinstance(p, nn.Embedding)}
    for name, layer in layers:
        if isinstance(layer, nn.Linear) and id(layer.weight) in embeddings:
            warnings.warn(
                f"MaximalUpdate: {name!r} is tied to the embedding "
                f"{embeddings[id(layer.weight)]!r} and scaled as an input, so its outputs grow "
                "with the width. Multiply them by base width / width in forward, or untie it.",
                stacklevel=4,
            )


def _fan_in(parameter: ScaledParameter) -> float:
    return parameter.fans.fan_in / (1 if parameter.base is None else parameter.base.fan_in)


def _fan_out(parameter: ScaledParameter) -> float:
    return parameter.fans.fan_out / (1 if parameter.base is None else parameter.base.fan_out)
