"""What happened during training, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit._support.figures import saved


@dataclass
class History:
    """The epochs of a training run.

    Args:
        epochs: One row per epoch: epoch, loss, lr, seconds, and the validation's numbers.
        stopped: Why training ended: "epochs", "early stopping", "interrupted" or "callback".
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    stopped: str = "epochs"

    def __len__(self) -> int:
        return len(self.epochs)

    def __getitem__(self, name: str) -> list[float]:
        """Return one quantity over the epochs."""
        if not self.epochs or name not in self.epochs[-1]:
            known = ", ".join(self.epochs[-1]) if self.epochs else "none yet"
            raise KeyError(f"history: there is no {name!r}. There are: {known}.")
        return [row[name] for row in self.epochs]

    def plot(self, path: str | Path, title: str = "") -> None:
        """Draw losses and learning rate over the epochs; needs matplotlib."""
        plot_history(self.epochs, path, title)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"epochs": self.epochs, "stopped": self.stopped}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> History:
        """Return the history that `to_dict` gave."""
        return cls(list(data["epochs"]), data["stopped"])


def plot_history(
    epochs: Sequence[Mapping[str, float]], path: str | Path | None = None, title: str = ""
) -> Any:
    """Draw what was measured in each epoch of training, a panel per quantity.

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
