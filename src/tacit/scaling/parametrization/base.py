"""Base class of parametrizations: an initial standard deviation and a learning-rate factor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import get_args

from torch import nn

from tacit._support.names import matches
from tacit.scaling.parametrization.roles import Fans, Kind, Role, ScaledParameter, fans_of


class Parametrization(ABC):
    """Initial scale and learning-rate factor of every parameter.

    Both are functions of the parameter's role and fans. Forward multipliers are not needed: by
    Lemma J.1 of Tensor Programs V a multiplier c is equivalent to scaling the initialization by c
    and the learning rate by c^2 under SGD, by c under Adam.

    Examples:
        >>> import tacit
        >>> ntp = tacit.NeuralTangent()
        >>> parameter = ntp.parameters_of(tacit.models.MLP(4, [256], 3))["3.weight"]
        >>> parameter.role, ntp.std(parameter), ntp.learning_rate(parameter, "adam")
        ('output', 0.0625, 0.0625)
    """

    roles: Mapping[str, Role]
    """Roles set explicitly: name or glob of a layer or parameter -> role."""

    @abstractmethod
    def std(self, parameter: ScaledParameter) -> float:
        """Return the initial standard deviation of a parameter's entries."""

    @abstractmethod
    def learning_rate(self, parameter: ScaledParameter, optimizer: str) -> float:
        """Return the factor of a parameter's learning rate."""

    def parameters_of(self, module: nn.Module) -> dict[str, ScaledParameter]:
        """Return role and fans of every parameter of a module, by name."""
        fans = fans_of(module)
        return self._with_explicit_roles(fans, roles_by_position(fans))

    def _with_explicit_roles(
        self, fans: Mapping[str, Fans], roles: Mapping[str, Role], base: Mapping[str, Fans] = {}
    ) -> dict[str, ScaledParameter]:
        named = dict(roles)
        if not isinstance(self.roles, Mapping):
            raise TypeError(
                f'roles: expected a dict such as {{"head": "output"}}, received {self.roles!r}.'
            )
        for pattern, role in self.roles.items():
            found = matching(pattern, fans)
            if role not in get_args(Role):
                expected = ", ".join(get_args(Role))
                raise ValueError(f"roles[{pattern!r}]: expected {expected}; received {role!r}.")
            if not found:
                listed = ", ".join(fans)
                raise ValueError(f"roles: no parameter matches {pattern!r}. Parameters: {listed}.")
            for name in found:
                if fans[name].kind in ("weight", "embedding", "bare") or len(found) == 1:
                    named[name] = role
        return {
            name: ScaledParameter(name, named[name], fans[name], base.get(name)) for name in fans
        }


def matching(pattern: str, names: Collection[str]) -> list[str]:
    """Return the parameters with this name or in the layer of this name; else those a glob matches.

    Examples:
        >>> matching("a[0]", ["a[0].weight", "a0.weight"]), matching("a*", ["a[0].weight"])
        (['a[0].weight'], ['a[0].weight'])
    """
    exact = [name for name in names if pattern in (name, name.rpartition(".")[0])]
    return exact or [name for name in names if matches(pattern, name)]


def roles_by_position(fans: Mapping[str, Fans]) -> dict[str, Role]:
    """Return roles inferred from the order of the parameters in the module.

    The first weight is an input weight unless the module has embeddings; the last is an output
    weight, whose bias does not grow with width; the others are hidden. Biases, gains and bare
    parameters are vectors.
    """
    weights = [name for name, f in fans.items() if f.kind == "weight"]
    embeddings = [name for name, f in fans.items() if f.kind == "embedding"]
    by_kind: dict[Kind, Role] = {"weight": "hidden", "embedding": "input"}
    roles: dict[str, Role] = {name: by_kind.get(f.kind, "vector") for name, f in fans.items()}
    if weights and not embeddings:
        roles[weights[0]] = "input"
    if weights:
        roles[weights[-1]] = "output"
        bias = weights[-1].replace("weight", "bias")
        if bias in fans and bias != weights[-1]:
            roles[bias] = "scalar"
    return roles
