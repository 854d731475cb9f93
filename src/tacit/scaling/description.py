"""A table of the scaling of every tensor of a network."""

from __future__ import annotations

from torch import nn

from tacit.scaling.parametrization import Parametrization
from tacit.scaling.parametrization.standard import given_or_standard
from tacit.scaling.parametrized import Parametrized, ScalingRow


def describe(net: nn.Module, parametrization: Parametrization | None = None) -> list[ScalingRow]:
    """Print a table of all tensors: role, fans, initial standard deviation, learning-rate factors.

    Wrongly inferred roles show here; correct them with `roles={"head": "output"}`. The standard
    deviation is that of weights at initialization, and of the noise of random tensors;
    `initialize` sets biases to 0 and leaves norm layers and bare parameters unchanged.

    Args:
        net: A plain network, or a variational model, which has its own parametrization.
        parametrization: Parametrization of a plain network; `tacit.Standard()` by default.

    Returns:
        The rows of the table. A covariance factor has its parameter's role and fans.
    """
    from rich.table import Table  # importing rich takes longer than the rest of this module

    from tacit._support.console import print_table

    if isinstance(net, Parametrized):
        if parametrization is not None:
            raise ValueError("describe: a variational model has its own parametrization.")
        rows = net.scaling_rows()
    else:
        rows = scaling_rows(net, parametrization)
    table = Table("tensor", "shape", "role", "fan in", "fan out", "std", "lr SGD", "lr Adam")
    for row in rows:
        shape = "x".join(map(str, row.shape)) or "scalar"
        values = (f"{value:.4g}" for value in (row.std, row.sgd, row.adam))
        table.add_row(row.name, shape, row.role, str(row.fan_in), str(row.fan_out), *values)
    print_table(table)
    return rows


def scaling_rows(
    net: nn.Module, parametrization: Parametrization | None = None
) -> list[ScalingRow]:
    """Return one row for each parameter of a plain network."""
    parametrization = given_or_standard("describe", net, parametrization)
    rows = []
    for name, scaled in parametrization.parameters_of(net).items():
        rates = (parametrization.learning_rate(scaled, optimizer) for optimizer in ("sgd", "adam"))
        shape, fans = tuple(net.get_parameter(name).shape), scaled.fans
        std = parametrization.std(scaled)
        rows.append(ScalingRow(name, shape, scaled.role, fans.fan_in, fans.fan_out, std, *rates))
    return rows
