"""Parameter groups for optimizers: each parameter exactly once, with its learning rate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from tacit._support import checks
from tacit.scaling.parametrization import Parametrization
from tacit.scaling.parametrization.standard import given_or_standard
from tacit.scaling.parametrized import Parametrized


def param_groups(
    net: nn.Module,
    lr: float,
    optimizer: str = "sgd",
    *,
    parametrization: Parametrization | None = None,
    weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer: each parameter once, with its learning rate.

    Args:
        net: A plain network, or a variational model, which has its own parametrization.
        lr: Base learning rate, before the parametrization's scaling.
        optimizer: Name of the optimizer: "sgd", "adam", "adamw", ...
        parametrization: Parametrization of a plain network; `tacit.Standard()` by default.
        weight_decay: Weight decay of the network's parameters, scaled such that learning rate times
            weight decay is the same for all. Covariance factors are not decayed.

    Examples:
        >>> import tacit, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        >>> groups = tacit.param_groups(net, lr=0.1, parametrization=tacit.MaximalUpdate())
        >>> [(group["name"], group["lr"]) for group in groups]
        [('means x8', 0.8), ('means x0.125', 0.0125), ('means x1', 0.1)]
    """
    if isinstance(net, Parametrized):
        if parametrization is not None:
            raise ValueError("param_groups: a variational model has its own parametrization.")
        return net.param_groups(lr, optimizer, weight_decay=weight_decay)
    parametrization = given_or_standard("param_groups", net, parametrization)
    scaled = parametrization.parameters_of(net)
    entries = [
        GroupEntry(
            "means", name, value, parametrization.learning_rate(scaled[name], optimizer), decay=True
        )
        for name, value in net.named_parameters()
    ]
    return group_parameters(entries, net, lr, weight_decay)


@dataclass(frozen=True)
class GroupEntry:
    """A parameter to be assigned to a group.

    Args:
        part: Prefix of the group's name: "means" or "factors".
        name: Dotted name of the parameter.
        parameter: The parameter.
        factor: Factor of the learning rate.
        decay: Whether weight decay applies.
    """

    part: str
    name: str
    parameter: nn.Parameter
    factor: float
    decay: bool


def group_parameters(
    entries: Iterable[GroupEntry], owner: nn.Module, lr: float, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Return groups with a name, parameters, learning rate and weight decay.

    Parameters with the same factor share a group. Weight decay is divided by the factor, so that
    learning rate times weight decay, the relative shrinkage per step, is the same for all.

    Raises:
        ValueError: If a parameter of `owner` appears in no entry, or in more than one.
    """
    lr = checks.positive_number("lr", lr)
    if weight_decay:
        weight_decay = checks.positive_number("weight_decay", weight_decay)
    groups: dict[tuple[str, float, bool], dict[str, Any]] = {}
    seen: set[int] = set()
    for entry in entries:
        if id(entry.parameter) in seen:
            raise ValueError(f"param_groups: {entry.name!r} would be in two groups.")
        seen.add(id(entry.parameter))
        decay = entry.decay and weight_decay > 0
        name = f"{entry.part} x{entry.factor:.6g}" + (", decayed" if decay else "")
        place = groups.setdefault(
            (entry.part, entry.factor, decay),
            {
                "name": name,
                "params": [],
                "lr": lr * entry.factor,
                "weight_decay": weight_decay / entry.factor if decay else 0.0,
            },
        )
        place["params"].append(entry.parameter)
    missing = [name for name, value in owner.named_parameters() if id(value) not in seen]
    if missing:
        raise ValueError(f"param_groups: in no group: {', '.join(missing)}.")
    return list(groups.values())
