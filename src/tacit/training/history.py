"""What happened during training, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.plots import plot_history


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
