"""Metrics accumulated over batches, in one process or several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from tacit.metrics.arguments import Values, as_tensor
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
    """Metrics by name, printed as a table.

    Examples:
        >>> Metrics(accuracy=0.98, nll=0.071)
        accuracy  0.9800
        nll       0.0710
    """

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:{width}}  {value:.4f}" for name, value in self.items())

    def __missing__(self, name: str) -> float:
        raise KeyError(f"no metric {name!r}; available: {', '.join(self)}")

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with the columns `metric` and `value`.

        Raises:
            ModuleNotFoundError: If pandas is not installed.
        """
        return data_frame({"metric": list(self), "value": list(self.values())})


class Streaming:
    """Per-example scores and sums over examples, accumulated batch by batch.

    A few scores are kept for each example, not its predictions: 150,000 images take some megabytes.
    Every metric is exact, for any batch sizes.

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
        self._uncertainties: dict[str, list[Tensor]] = {}

    def update(
        self,
        examples: Mapping[str, Values],
        sums: Mapping[str, Tensor] | None = None,
        uncertainties: Mapping[str, Values] | None = None,
    ) -> None:
        """Add a batch of examples.

        Args:
            examples: Per-example scores by name, each (B,).
            sums: Sums over the examples of the batch, by name.
            uncertainties: Scores by which to rank the examples, each (B,), for `uncertainties`;
                their means are not metrics.
        """
        for pieces, given in (
            (self._pieces, examples),
            (self._uncertainties, uncertainties or {}),
        ):
            for name, values in given.items():
                piece = as_tensor(name, values).detach().cpu().double().flatten()
                pieces.setdefault(name, []).append(piece)
        for name, value in (sums or {}).items():
            added = value.detach().cpu().double()
            self._sums[name] = self._sums[name] + added if name in self._sums else added

    def gather(self) -> Streaming:
        """Return the examples and sums of all processes, every one of which must call this."""
        if not (dist.is_available() and dist.is_initialized()):
            return self
        own = {name: self[name] for name in self._pieces}, self._sums, self.uncertainties
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
        together = Streaming()
        for examples, sums, uncertainties in everyone:
            together.update(examples, sums, uncertainties)
        return together

    def __getitem__(self, name: str) -> Tensor:
        """Return the score `name` of all examples, (N,)."""
        return torch.cat(self._pieces[name])

    @property
    def uncertainties(self) -> dict[str, Tensor]:
        """The scores for ranking the examples, by name, each (N,)."""
        return {name: torch.cat(pieces) for name, pieces in self._uncertainties.items()}

    def compute(self) -> Metrics:
        """Return the metrics: the mean of each score, or the metrics derived from it."""
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
            else:
                found[name] = values.mean().item()
        if "classwise_gaps" in self._sums:
            gaps = self._sums["classwise_gaps"].abs().sum(-1).mean().item()
            found["classwise_ece"] = gaps / len(self["nll"])
        return found
