"""The record of a training run, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit._support.figures import saved


@dataclass
class History:
    """The record of a training run.

    Args:
        epochs: One row per epoch: epoch, loss, lr, seconds, and the validation metrics.
        stopped: Why training ended: "epochs", "early stopping", "interrupted" or "callback".
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    stopped: str = "epochs"

    def __len__(self) -> int:
        return len(self.epochs)

    def __getitem__(self, name: str) -> list[float]:
        """Return the values of one quantity, one per epoch."""
        if not self.epochs or name not in self.epochs[-1]:
            known = ", ".join(self.epochs[-1]) if self.epochs else "none yet"
            raise KeyError(f"history: no quantity {name!r}. Recorded quantities: {known}.")
        return [row[name] for row in self.epochs]

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


def plot_history(
    epochs: Sequence[Mapping[str, float]], path: str | Path | None = None, title: str = ""
) -> Any:
    """Plot the quantities recorded in each epoch of training, one panel each.

    Args:
        epochs: One row per epoch.
        path: File to write, if any.
        title: Title of the figure.
    """
    from matplotlib.figure import Figure

    names = [name for name in epochs[-1] if name not in ("epoch", "seconds")]
    figure = Figure(figsize=(3 * len(names), 2.8), layout="constrained")
    for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        axis.plot([row["epoch"] for row in epochs], [row.get(name, math.nan) for row in epochs])
        axis.set(xlabel="epoch", title=name)
    figure.suptitle(title)
    return saved(figure, path)
