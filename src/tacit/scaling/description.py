"""A table of the scaling of every tensor of a network."""

from __future__ import annotations

from torch import nn

from tacit.scaling.parametrization import Parametrization
from tacit.scaling.parametrization.standard import given_or_standard
from tacit.scaling.parametrized import Parametrized, ScalingRow


class ScalingTable(list[ScalingRow]):
    """Rows of `describe`, printed as a table."""

    def __repr__(self) -> str:
        from rich.markup import escape  # importing rich takes longer than the rest of this module
        from rich.table import Table

        from tacit._support.console import table_text

        table = Table("tensor", "shape", "role", "fan in", "fan out", "std", "lr SGD", "lr Adam")
        for row in self:
            shape = "x".join(map(str, row.shape)) or "scalar"
            values = (f"{value:.4g}" for value in (row.std, row.sgd, row.adam))
            fans = str(row.fan_in), str(row.fan_out)
            table.add_row(escape(row.name), shape, row.role, *fans, *values)
        return table_text(table)


def describe(net: nn.Module, parametrization: Parametrization | None = None) -> ScalingTable:
    """Return a table of all tensors: role, fans, initial standard deviation, learning-rate factors.

    Wrongly inferred roles show here; correct them with `roles={"head": "output"}`. The standard
    deviation is that of weights at initialization, and of the noise of random tensors;
    `initialize` sets biases to 0 and leaves norm layers and bare parameters unchanged.

    Args:
        net: A plain network, or a variational model, which has its own parametrization.
        parametrization: Parametrization of a plain network; `tacit.Standard()` by default.

    Returns:
        The rows, a list that prints as a table. A covariance factor has its parameter's role and
        fans.

    Examples:
        >>> import tacit, torch
        >>> rows = tacit.describe(torch.nn.Linear(4, 2), tacit.MaximalUpdate())
        >>> [(row.name, row.role, row.sgd) for row in rows]
        [('weight', 'output', 0.25), ('bias', 'scalar', 1.0)]
    """
    if isinstance(net, Parametrized):
        if parametrization is not None:
            raise ValueError("describe: a variational model has its own parametrization.")
        return ScalingTable(net.scaling_rows())
    return ScalingTable(scaling_rows(net, parametrization))


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
