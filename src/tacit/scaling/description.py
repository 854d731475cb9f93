"""A table of how each tensor of a network scales."""

from __future__ import annotations

from torch import nn

from tacit.scaling.parametrization import Parametrization, Standard
from tacit.scaling.parametrized import Parametrized, ScalingRow


def describe(net: nn.Module, parametrization: Parametrization | None = None) -> list[ScalingRow]:
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
    from rich.table import Table  # imports of rich cost more than the rest of this module

    from tacit._support.console import print_table

    if isinstance(net, Parametrized):
        rows = net.scaling_rows()
    else:
        rows = scaling_rows(net, parametrization)
    table = Table("tensor", "shape", "role", "fan in", "fan out", "std", "lr SGD", "lr Adam")
    for row in rows:
        shape = "x".join(map(str, row.shape)) or "scalar"
        numbers = (f"{number:.4g}" for number in (row.std, row.sgd, row.adam))
        table.add_row(row.name, shape, row.role, str(row.fan_in), str(row.fan_out), *numbers)
    print_table(table)
    return rows


def scaling_rows(
    net: nn.Module, parametrization: Parametrization | None = None
) -> list[ScalingRow]:
    """Return one row for each parameter of a plain network."""
    parametrization = parametrization or Standard()
    rows = []
    for name, scaled in parametrization.parameters_of(net).items():
        rates = (parametrization.learning_rate(scaled, optimizer) for optimizer in ("sgd", "adam"))
        shape, fans = tuple(net.get_parameter(name).shape), scaled.fans
        std = parametrization.std(scaled)
        rows.append(ScalingRow(name, shape, scaled.role, fans.fan_in, fans.fan_out, std, *rates))
    return rows
