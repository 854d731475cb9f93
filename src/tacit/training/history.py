"""The record of a training run, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, overload

import numpy as np
from torch import Tensor

from tacit._support.figures import saved


@dataclass
class History:
    """The record of a training run.

    A name gives the values of one quantity; an integer or a slice gives rows.

    Args:
        epochs: One row per epoch: epoch, loss, lr, seconds, and the validation metrics.
        stopped: Why training ended: "epochs", "early stopping", "interrupted" or "callback".

    Examples:
        >>> history = History([{"epoch": 1, "loss": 0.7}, {"epoch": 2, "loss": 0.5}])
        >>> history["loss"], history[-1]
        ([0.7, 0.5], {'epoch': 2, 'loss': 0.5})
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    stopped: str = "epochs"

    def __len__(self) -> int:
        return len(self.epochs)

    def __repr__(self) -> str:
        if not self.epochs:
            return "History(no epochs)"
        text = f"{len(self)} epochs" + (f", {self.stopped}" if self.stopped != "epochs" else "")
        shown = ("epoch", "loss", "lr", "nll", "accuracy", "rmse")
        row = self.epochs[-1]
        if "nll" in row:
            best = min(self.epochs, key=lambda each: each.get("nll", math.inf))
            text += f"; best nll {best['nll']:.4g} in epoch {best['epoch']}"
        last = ", ".join(f"{name} {row[name]:.4g}" for name in shown if name in row)
        return f"History({text}; last row: {last})"

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter(self.epochs)

    @overload
    def __getitem__(self, index: str) -> list[float]: ...
    @overload
    def __getitem__(self, index: int) -> dict[str, float]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, float]]: ...
    def __getitem__(self, index: str | int | slice) -> Any:
        """Return the values of a quantity, NaN for epochs without it; or rows, by position."""
        if isinstance(index, slice):
            return self.epochs[index]
        if isinstance(index, Integral) and not isinstance(index, bool):
            return self._row(int(index))
        if not isinstance(index, str):
            raise TypeError(
                "history: expected the name of a quantity, or an integer or slice of epochs, "
                f"received {index!r}."
            )
        if not self.epochs or index not in self.epochs[-1]:
            known = ", ".join(self.epochs[-1]) if self.epochs else "none yet"
            raise KeyError(f"history: no quantity {index!r}. Recorded quantities: {known}.")
        return [row.get(index, math.nan) for row in self.epochs]

    def _row(self, index: int) -> dict[str, float]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"history: no epoch at {index}; {len(self)} were recorded.")
        return self.epochs[index]

    def plot(self, path: str | Path, title: str = "") -> None:
        """Plot all quantities against the epoch; needs matplotlib.

        Args:
            path: File to write.
            title: Title of the figure.
        """
        plot_history(self.epochs, path, title)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can represent."""
        return {"epochs": self.epochs, "stopped": self.stopped}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> History:
        """Return the history from the result of `to_dict`."""
        return cls(list(data["epochs"]), data["stopped"])


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row, to which callbacks may have added values, with Python numbers.

    Raises:
        TypeError: If a value is not a number or a string.
    """
    return {name: _plain(name, value) for name, value in row.items()}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Tensor | np.ndarray | np.generic) and math.prod(value.shape) == 1:
        return value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Real):
        return float(value)
    raise TypeError(
        f"callbacks: expected a number or a string as {name!r} in a row of the history, received "
        f"{type(value).__name__}."
    )


def plot_history(
    epochs: Sequence[Mapping[str, float]], path: str | Path | None = None, title: str = ""
) -> Any:
    """Plot the quantities recorded in each epoch of training, one panel each.

    Args:
        epochs: One row per epoch.
        path: File to write, if any.
        title: Title of the figure.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        ValueError: If there is nothing to plot.

    Examples:
        >>> rows = [{"epoch": 1, "loss": 0.7, "lr": 0.1}, {"epoch": 2, "loss": 0.5, "lr": 0.1}]
        >>> figure = plot_history(rows)  # as History.plot does
        >>> [axis.get_title() for axis in figure.axes]
        ['loss', 'lr']
    """
    from matplotlib.figure import Figure

    if not epochs:
        raise ValueError("plot_history: expected at least one epoch, received none.")
    names = [name for name in epochs[-1] if name not in ("epoch", "seconds")]
    if not names or not all("epoch" in row for row in epochs):
        raise ValueError(
            "plot_history: expected rows with 'epoch' and other quantities, received "
            f"{', '.join(epochs[-1]) or 'empty ones'}."
        )
    figure = Figure(figsize=(3 * len(names), 2.8), layout="constrained")
    for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        axis.plot([row["epoch"] for row in epochs], [row.get(name, math.nan) for row in epochs])
        axis.set(xlabel="epoch", title=name)
    figure.suptitle(title)
    return saved(figure, path)
