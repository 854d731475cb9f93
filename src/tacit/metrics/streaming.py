"""Metrics of data that come in pieces, in one process or in several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from tacit.metrics.calibration import calibration_error
from tacit.metrics.rejection import aurc


def data_frame(columns: Mapping[str, Any]) -> Any:
    """Return a pandas DataFrame."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "to_frame: pandas is needed: pip install pandas", name="pandas"
        ) from None
    return pandas.DataFrame(columns)


class Metrics(dict[str, float]):
    """Numbers by name, which print as a table.

    Examples:
        >>> Metrics(accuracy=0.98, nll=0.071)
        accuracy  0.9800
        nll       0.0710
    """

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:{width}}  {value:.4f}" for name, value in self.items())

    def __missing__(self, name: str) -> float:
        raise KeyError(f"there is no {name!r}; there are {', '.join(self)}")

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each number: `metric` and `value`.

        Raises:
            ModuleNotFoundError: If pandas is not installed.
        """
        return data_frame({"metric": list(self), "value": list(self.values())})


class Streaming:
    """What is needed of each example, and sums, collected piece by piece.

    A few numbers for each example are kept, not its predictions: 150,000 images take some
    megabytes. So every metric is exact, whatever the pieces were.

    Examples:
        >>> import torch
        >>> collected = Streaming()
        >>> collected.update({"nll": torch.tensor([0.1, 0.3])})
        >>> collected.update({"nll": torch.tensor([0.5])})
        >>> collected.compute()
        nll  0.3000
    """

    def __init__(self) -> None:
        self._pieces: dict[str, list[Tensor]] = {}
        self._sums: dict[str, Tensor] = {}

    def update(
        self, examples: Mapping[str, Tensor], sums: Mapping[str, Tensor] | None = None
    ) -> None:
        """Add some examples.

        Args:
            examples: A number for each example, by name, (B,).
            sums: What adds up over examples, by name.
        """
        for name, values in examples.items():
            self._pieces.setdefault(name, []).append(values.detach().cpu().double().flatten())
        for name, value in (sums or {}).items():
            added = value.detach().cpu().double()
            self._sums[name] = self._sums[name] + added if name in self._sums else added

    def gather(self) -> Streaming:
        """Return what all processes have collected together; each must call it."""
        if not (dist.is_available() and dist.is_initialized()):
            return self
        own = ({name: self[name] for name in self._pieces}, self._sums)
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
        together = Streaming()
        for examples, sums in everyone:
            together.update(examples, sums)
        return together

    def __getitem__(self, name: str) -> Tensor:
        """Return a number for each example, (N,)."""
        return torch.cat(self._pieces[name])

    def compute(self) -> Metrics:
        """Return the metrics: the mean of each number, or what follows from it."""
        found = Metrics()
        for name in self._pieces:
            values = self[name]
            if name == "squared_error":
                found["rmse"] = values.mean().sqrt().item()
            elif name == "confidence":
                correct = self["accuracy"]
                found["ece"] = calibration_error(values, correct)
                found["adaptive_ece"] = calibration_error(values, correct, adaptive=True)
                found["aurc"] = aurc(values, correct)
            elif name != "entropy":
                found[name] = values.mean().item()
        if "classwise_gaps" in self._sums:
            gaps = self._sums["classwise_gaps"].abs().sum(-1).mean().item()
            found["classwise_ece"] = gaps / len(self["nll"])
        return found
