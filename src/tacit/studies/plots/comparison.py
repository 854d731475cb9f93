"""Plots that compare methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit._support.figures import saved

Point = tuple[float, float]  # a mean and its standard error, which may be NaN


def plot_comparison(
    panels: Mapping[str, Mapping[str, Point]], path: str | Path | None = None, title: str = ""
) -> Any:
    """Plot the mean and standard error of each method, one panel per quantity.

    Args:
        panels: Panel title -> method -> mean and standard error, the same methods in all panels.
        path: File to write, if any.
        title: Title of the figure.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If the panels are not mappings.
        ValueError: If there is no panel or no method, or if the methods differ between panels.

    Examples:
        >>> nan = float("nan")
        >>> errors = {"standard": (5.1, 0.2), "deep_ensemble": (4.2, 0.1)}
        >>> nll = {"standard": (0.21, 0.01), "deep_ensemble": (0.15, nan)}
        >>> figure = plot_comparison({"error, %": errors, "NLL": nll})
        >>> [axis.get_title() for axis in figure.axes]
        ['error, %', 'NLL']
    """
    from matplotlib.figure import Figure

    methods = _columns("plot_comparison(panels)", panels, "a mapping of methods per panel title")
    figure = Figure(
        figsize=(1.6 + 2.4 * len(panels), 0.9 + 0.28 * len(methods)), layout="constrained"
    )
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    heights = range(len(methods))[::-1]
    for axis, (name, points) in zip(axes, panels.items(), strict=True):
        for height, method in zip(heights, methods, strict=True):
            mean, error = points[method]
            axis.errorbar(mean, height, xerr=error, fmt="o", color=colour(methods, method))
        axis.set(title=name)
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(heights, labels=[method.replace("_", " ") for method in methods])
    figure.suptitle(title)
    return saved(figure, path)


def plot_heat(
    table: Mapping[str, Mapping[str, float]], path: str | Path | None = None, title: str = ""
) -> Any:
    """Plot a table as a heat map: darker is larger, with a separate color range per column.

    Numbers that are not finite do not affect the range. NaN and infinity are darkest, minus
    infinity is lightest.

    Args:
        table: Method -> column -> number, the same columns for all methods.
        path: File to write, if any.
        title: Title of the figure.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If the rows are not mappings.
        ValueError: If there is no method or no column, or if the columns differ between methods.

    Examples:
        >>> table = {"standard": {"noise": 1.2, "fog": 0.8}, "swag": {"noise": 1.0, "fog": 0.7}}
        >>> figure = plot_heat(table, title="NLL")
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['1.20', '0.80', '1.00', '0.70']
    """
    from matplotlib.figure import Figure

    columns = _columns("plot_heat(table)", table, "a mapping of columns per method")
    methods = list(table)
    figure = Figure(
        figsize=(2 + 0.62 * len(columns), 1.4 + 0.3 * len(methods)), layout="constrained"
    )
    axis = figure.subplots()
    shades = [[_shade(table, method, column) for column in columns] for method in methods]
    axis.imshow(shades, cmap="Blues", vmin=0, vmax=1.3, aspect="auto")
    for i, method in enumerate(methods):
        for j, column in enumerate(columns):
            dark = shades[i][j] > 0.8
            axis.text(
                j, i, _short(table[method][column]), ha="center", va="center", fontsize=7,
                color="white" if dark else "black",
            )  # fmt: skip
    names = [column.replace("_", " ") for column in columns]
    axis.set_xticks(range(len(columns)), labels=names, rotation=45, ha="right")
    axis.set_yticks(range(len(methods)), labels=[method.replace("_", " ") for method in methods])
    axis.set_title(title)
    return saved(figure, path)


def plot_cost(
    panels: Mapping[str, Mapping[str, Point]], path: str | Path | None = None, title: str = ""
) -> Any:
    """Plot quality against cost, one point per method.

    Args:
        panels: Quality measure -> method -> cost relative to a plain network, and quality; the same
            methods in all panels.
        path: File to write, if any.
        title: Title of the figure.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If the panels are not mappings.
        ValueError: If there is no panel or no method, or if the methods differ between panels.

    Examples:
        >>> quality = {"standard": (1.0, 5.1), "deep_ensemble": (5.0, 4.2)}
        >>> figure = plot_cost({"error, %": quality})
        >>> figure.axes[0].get_ylabel()
        'error, %'
    """
    from matplotlib.figure import Figure

    methods = _columns("plot_cost(panels)", panels, "a mapping of methods per panel title")
    figure = Figure(figsize=(1 + 4 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (name, points) in zip(axes, panels.items(), strict=True):
        for method, (cost, quality) in points.items():
            label = method.replace("_", " ")
            axis.plot(cost, quality, "o", color=colour(methods, method), label=label)
        axis.set(xscale="log", xlabel="training time relative to a plain network", ylabel=name)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("{x:g}")
        axis.tick_params(axis="x", which="minor", labelsize="x-small")
        axis.grid(alpha=0.3)
    axes[-1].legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(title)
    return saved(figure, path)


def colour(methods: Sequence[str], method: str) -> Any:
    """Return the colour of a method, the same in all figures of the same methods."""
    from matplotlib import colormaps

    return colormaps["tab20"](methods.index(method) % 20)


def _columns(name: str, rows: Mapping[str, Mapping[str, Any]], expected: str) -> list[str]:
    """Return the keys that all rows share.

    Args:
        name: Name of the function and its argument, for error messages.
        rows: A mapping of mappings.
        expected: What the rows should be, for error messages.
    """
    if not isinstance(rows, Mapping):
        raise TypeError(f"{name}: expected {expected}, received {type(rows).__name__}.")
    if not rows:
        raise ValueError(f"{name}: expected {expected}, at least one; received none.")
    for title, row in rows.items():
        if not isinstance(row, Mapping):
            received = f"{type(row).__name__} for {title!r}"
            raise TypeError(f"{name}: expected {expected}, received {received}.")
    first, columns = next(iter(rows.items()))
    if not columns:
        raise ValueError(f"{name}: expected {expected}; {first!r} is empty.")
    for title, row in rows.items():
        if different := sorted(map(str, row.keys() ^ columns.keys())):
            raise ValueError(
                f"{name}: expected the same keys in {first!r} and {title!r}; only one of them has "
                f"{', '.join(different)}."
            )
    return list(columns)


def _shade(table: Mapping[str, Mapping[str, float]], method: str, column: str) -> float:
    """Return the position of a number in the range of its column, from 0 to 1."""
    number = table[method][column]
    if not math.isfinite(number):
        return 0.0 if number == -math.inf else 1.0
    numbers = [row[column] for row in table.values() if math.isfinite(row[column])]
    low, high = min(numbers), max(numbers)
    return (number - low) / (high - low) if high > low else 0.0


def _short(number: float) -> str:
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"
