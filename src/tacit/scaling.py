"""Parametrizations at work on networks, plain or variational: initialize, group, describe."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.table import Table
from torch import nn

from tacit._console import print_table
from tacit._names import join, matches
from tacit.parametrization import Entry, Parametrization, Standard, group
from tacit.variational import Variational


def initialize(
    net: nn.Module,
    parametrization: Parametrization | None = None,
    *,
    only: Sequence[str] | None = None,
    generator: torch.Generator | None = None,
) -> None:
    """Redraw the parameters of a plain network in place, as a parametrization says.

    Weights and embeddings are drawn from a normal distribution, biases are set to zero; norm layers
    and parameters outside of layers stay as they are.

    Args:
        net: The network. Do it before `variational`, whose means are the network's parameters.
        parametrization: `tacit.Standard()` if left out.
        only: Names or globs of the layers to redraw; all if left out.
        generator: Source of randomness.

    Examples:
        >>> import tacit, torch
        >>> net = torch.nn.Linear(100, 50)
        >>> tacit.initialize(net, generator=torch.Generator().manual_seed(0))
        >>> round(net.weight.std().item(), 2)
        0.1
    """
    if isinstance(net, Variational):
        raise TypeError("initialize: expected a plain network; initialize it before `variational`.")
    parametrization = parametrization or Standard()
    tensors = parametrization.tensors(net)
    chosen = _chosen(tensors.keys(), only)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name not in chosen:
                continue
            if tensors[name].fans.kind in ("weight", "embedding"):
                parameter.normal_(0.0, parametrization.std(tensors[name]), generator=generator)
            elif tensors[name].fans.kind == "bias":
                parameter.zero_()


def param_groups(
    net: nn.Module,
    lr: float,
    optimizer: str = "sgd",
    *,
    parametrization: Parametrization | None = None,
    weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer: every parameter once, with its learning rate.

    Args:
        net: A plain network, or a variational model, which has its own parametrization.
        lr: Learning rate, before the factors of the parametrization.
        optimizer: The name of the optimizer: "sgd", "adam", "adamw" and others.
        parametrization: For a plain network; `tacit.Standard()` if left out.
        weight_decay: Weight decay of the network's parameters, scaled such that learning rate times
            weight decay is the same for all. A model's factors have none.

    Examples:
        >>> import tacit, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        >>> groups = tacit.param_groups(net, lr=0.1, parametrization=tacit.MaximalUpdate())
        >>> [(group["name"], group["lr"]) for group in groups]
        [('means x8', 0.8), ('means x0.125', 0.0125), ('means x1', 0.1)]
    """
    if isinstance(net, Variational):
        if parametrization is not None:
            raise ValueError("param_groups: a variational model has its own parametrization.")
        return net.param_groups(lr, optimizer, weight_decay=weight_decay)
    parametrization = parametrization or Standard()
    tensors = parametrization.tensors(net)
    entries = [
        Entry("means", name, value, parametrization.learning_rate(tensors[name], optimizer), True)
        for name, value in net.named_parameters()
    ]
    return group(entries, net, lr, weight_decay)


@dataclass(frozen=True)
class Row:
    """One tensor in a description."""

    name: str
    shape: tuple[int, ...]
    role: str
    fan_in: int
    fan_out: int
    std: float
    sgd: float
    adam: float


def describe(net: nn.Module, parametrization: Parametrization | None = None) -> list[Row]:
    """Print a table of all tensors with role, fans, initial standard deviation and rates.

    A wrong guess of a role shows here; correct it with `roles={"head": "output"}`. The standard
    deviation is that of weights at initialization, and of the noise of any random tensor;
    `initialize` sets biases to 0 and leaves norm layers and bare parameters as they are.

    Args:
        net: A plain network, or a variational model, which has its own parametrization.
        parametrization: For a plain network; `tacit.Standard()` if left out.

    Returns:
        The rows of the table. A factor has the role and fans of the parameter it belongs to.
    """
    rows = _model_rows(net) if isinstance(net, Variational) else _rows(net, parametrization)
    table = Table("tensor", "shape", "role", "fan in", "fan out", "std", "lr SGD", "lr Adam")
    for row in rows:
        shape = "x".join(map(str, row.shape)) or "scalar"
        numbers = (f"{number:.4g}" for number in (row.std, row.sgd, row.adam))
        table.add_row(row.name, shape, row.role, str(row.fan_in), str(row.fan_out), *numbers)
    print_table(table)
    return rows


def _rows(net: nn.Module, parametrization: Parametrization | None) -> list[Row]:
    parametrization = parametrization or Standard()
    rows = []
    for name, tensor in parametrization.tensors(net).items():
        rates = (parametrization.learning_rate(tensor, optimizer) for optimizer in ("sgd", "adam"))
        shape, fans = tuple(net.get_parameter(name).shape), tensor.fans
        std = parametrization.std(tensor)
        rows.append(Row(name, shape, tensor.role, fans.fan_in, fans.fan_out, std, *rates))
    return rows


def _model_rows(model: Variational) -> list[Row]:
    rows = {}
    means = {}  # by identity: a tied parameter may be known to its layer by another name
    for row in _rows(model.module, model.parametrization):
        means[id(model.module.get_parameter(row.name))] = row
        rows[f"module.{row.name}"] = replace(row, name=f"module.{row.name}")
    sgd, adam = ({entry.name: entry for entry in model.entries(o)} for o in ("sgd", "adam"))
    scales = model.scales()
    for layer in model.layers:
        for name, factor in layer.factors.items():
            label = join("factors", join(layer.name, name))
            mean = factor.tensor or next(iter(layer.shapes))
            of = means[id(model.module.get_parameter(join(layer.name, mean)))]
            scale = scales[layer.label][mean] * layer.covariance.scale if factor.tensor else 1.0
            std = scale * (factor.variance / factor.rank) ** 0.5
            rates = (sgd[label].factor, adam[label].factor)
            rows[label] = Row(label, factor.shape, of.role, of.fan_in, of.fan_out, std, *rates)
    return list(rows.values())


def _chosen(names: Collection[str], only: Sequence[str] | None) -> set[str]:
    if only is None:
        return set(names)
    chosen: set[str] = set()
    for pattern in [only] if isinstance(only, str) else only:
        found = {name for name in names if matches(pattern, name)}
        if not found:
            listed = ", ".join(names)
            raise ValueError(f"only: no parameter matches {pattern!r}. There are: {listed}.")
        chosen |= found
    return chosen
