"""Plots of feature changes and learning rates across widths."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit._support.figures import saved

QUANTITIES = ("mean", "std", "start")  # of a row of a coordinate check


def plot_coordinates(
    changes: Sequence[dict[str, Any]], path: str | Path | None = None, title: str = ""
) -> Any:
    """Plot the change of the features against width, one column of panels per layer.

    The upper row shows the mean over draws of the weights, the lower row, if any, the standard
    deviation.

    Args:
        changes: Rows of a coordinate check: layer, width, seed, step, mean, std, start. A None
            marks a diverged run; its point is omitted.
        path: File to write, if any.
        title: Title of the figure.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If a row is not a mapping.
        ValueError: If there are no rows, or a row lacks a field.

    Examples:
        >>> rows = [
        ...     {"layer": "1", "width": width, "step": 1, "mean": 0.1, "std": 0.0, "start": 1.0}
        ...     for width in (64, 128, 256)
        ... ]
        >>> figure = plot_coordinates(rows)
        >>> figure.axes[0].get_title(), figure.axes[0].get_ylabel()
        ('layer 1', 'change in feature mean')
    """
    from matplotlib.figure import Figure

    _check_rows("plot_coordinates(changes)", changes, ("layer", "width", "step", *QUANTITIES))
    layers = list(dict.fromkeys(row["layer"] for row in changes))
    steps, widths = (sorted({row[key] for row in changes}) for key in ("step", "width"))
    quantities = ["mean", "std"] if any(row["std"] for row in changes) else ["mean"]
    figure = Figure(figsize=(3 * len(layers), 2.6 * len(quantities)), layout="constrained")
    axes = figure.subplots(len(quantities), len(layers), squeeze=False, sharex=True)
    for i, quantity in enumerate(quantities):
        for layer, axis in zip(layers, axes[i], strict=True):
            rows = [row for row in changes if row["layer"] == layer]
            for step in steps:
                shade = 0.25 + 0.75 * step / steps[-1]
                at = [row for row in rows if row["step"] == step]
                _line(axis, at, quantity, color="black", alpha=shade, label=f"step {step}")
            if quantity == "mean":
                _line(axis, rows, "start", color="tab:blue", label="initial size")
            axis.set(xscale="log", yscale="log", title=f"layer {layer}" if i == 0 else "")
            axis.set_xticks(widths, labels=map(str, widths))
            axis.minorticks_off()
        axes[i][0].set_ylabel(f"change in feature {quantity}")
    for axis in axes[-1]:
        axis.set_xlabel("width")
    axes[0][-1].legend(fontsize="x-small")
    figure.suptitle(title)
    return saved(figure, path)


def plot_learning_rates(
    panels: Mapping[str, dict[str, Any]], path: str | Path | None = None
) -> Any:
    """Plot the loss against the learning rate, one line per width.

    A star marks the best learning rate of each width, the dotted line the transferred one.

    Args:
        panels: Panel title -> plain data with `trials` (rows of width, lr and loss) and the
            transferred rate `lr`, as from `LearningRateTransfer.to_dict`. A loss of None marks a
            diverged run; its point is omitted.
        path: File to write, if any.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If the panels or their trials are not mappings.
        ValueError: If there is no panel, or a panel has no trials or no rate.

    Examples:
        >>> trials = [
        ...     {"width": width, "lr": lr, "loss": (lr - 0.1) ** 2 + 1 / width}
        ...     for width in (64, 128) for lr in (0.05, 0.1, 0.2)
        ... ]
        >>> figure = plot_learning_rates({"muP": {"trials": trials, "lr": 0.1}})
        >>> figure.axes[0].get_title(), len(figure.axes[0].get_lines())
        ('muP', 5)
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    _check_panels(panels)
    figure = Figure(figsize=(4.5 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (title, found) in zip(axes, panels.items(), strict=True):
        widths = sorted({row["width"] for row in found["trials"]})
        for i, width in enumerate(widths):
            color = colormaps["viridis"](0.9 * (1 - i / max(1, len(widths) - 1)))
            rows = [row for row in found["trials"] if row["width"] == width]
            rates, losses = _means(rows, "lr", "loss")
            axis.plot(rates, losses, color=color, marker="o", markersize=3, label=f"width {width}")
            finite = [pair for pair in zip(losses, rates, strict=True) if not math.isnan(pair[0])]
            if finite:
                loss, rate = min(finite)
                axis.plot([rate], [loss], color=color, marker="*", markersize=11)
        axis.axvline(found["lr"], color="black", linewidth=0.8, linestyle=":")
        axis.set(xscale="log", yscale="log", xlabel="learning rate", title=title)
    axes[0].set_ylabel("validation loss")
    axes[0].legend(fontsize="small")
    return saved(figure, path)


def _check_panels(panels: Any) -> None:
    name = "plot_learning_rates(panels)"
    if not isinstance(panels, Mapping):
        raise TypeError(
            f"{name}: expected a mapping from panel titles to LearningRateTransfer.to_dict(), "
            f"received {type(panels).__name__}."
        )
    _check_rows(name, list(panels.values()), ("trials", "lr"))
    for found in panels.values():
        _check_rows(f"{name}, trials", found["trials"], ("width", "lr", "loss"))


def _check_rows(name: str, rows: Any, fields: Sequence[str]) -> None:
    """Raise an error unless there are rows, and each is a mapping with the given fields."""
    expected = f"{name}: expected at least one mapping with {', '.join(fields)}"
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise TypeError(f"{expected}; received {type(rows).__name__}.")
    if not rows:
        raise ValueError(f"{expected}; received none.")
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"{expected}; received {type(row).__name__}.")
        if missing := [field for field in fields if field not in row]:
            raise ValueError(f"{expected}; received one without {', '.join(missing)}.")


def _line(axis: Any, rows: Sequence[dict[str, Any]], quantity: str, **style: Any) -> None:
    axis.plot(*_means(rows, "width", quantity), marker="o", markersize=3, **style)


def _means(
    rows: Sequence[dict[str, Any]], over: str, quantity: str
) -> tuple[list[float], list[float]]:
    """Return the values of `over` and the mean of a quantity at each, NaN if one is None."""
    positions = sorted({row[over] for row in rows})
    means = []
    for position in positions:
        values = [row[quantity] for row in rows if row[over] == position]
        means.append(math.nan if None in values else statistics.fmean(values))
    return positions, means
