"""Metrics accumulated over batches, in one process or several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from tacit._support import checks
from tacit.metrics.arguments import Values, as_tensor
from tacit.metrics.binned import binned_aurc, binned_calibration_error, confidence_sums
from tacit.metrics.calibration import calibration_error
from tacit.metrics.rejection import aurc
from tacit.metrics.segmentation import class_iou, miou

BY_OUTPUT = {"squared_error": "rmse", "coverage_90": "coverage_90"}
"""Score -> metric that is also reported for each of several outputs."""

OUTPUTS = 20  # largest number of outputs with metrics of their own
LIMIT = 2**20  # 50 MB of scores
BINS = "confidence_bins"


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

    Up to `limit` examples a few scores are kept for each, not its predictions: 150,000 images take
    some megabytes, and every metric is exact, for any batch sizes. Dense outputs have a score for
    each position. Beyond the limit only sums are kept: means, `ece`, `classwise_ece` and `miou`
    stay exact; `adaptive_ece` and `aurc` are computed from fine bins of confidence.

    Args:
        limit: Number of examples, or positions, whose scores are kept.

    Examples:
        >>> import torch
        >>> collected = Streaming()
        >>> collected.update({"nll": torch.tensor([0.1, 0.3])})
        >>> collected.update({"nll": torch.tensor([0.5])})
        >>> collected.compute()
        nll  0.3000
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = checks.positive_integer("limit", limit)
        self._pieces: dict[str, list[Tensor]] = {}  # scores of each example
        self._sums: dict[str, Tensor] = {}
        self._uncertainties: dict[str, list[Tensor]] = {}
        self._folded: dict[str, Tensor] = {}  # number and sum of scores that are not kept

    def update(
        self,
        examples: Mapping[str, Values],
        sums: Mapping[str, Tensor] | None = None,
        uncertainties: Mapping[str, Values] | None = None,
    ) -> None:
        """Add a batch of examples.

        Args:
            examples: Per-example scores by name, each (B,). Squared errors and coverage of 2 to 20
                outputs, (B, ...), are also accumulated for each output.
            sums: Sums over the examples of the batch, by name.
            uncertainties: Scores by which to rank the examples, each (B,), for `uncertainties`;
                their means are not metrics.
        """
        _add(self._sums, sums or {})
        for name, values in (uncertainties or {}).items():
            piece = as_tensor(name, values).detach().cpu().double().flatten()
            self._uncertainties.setdefault(name, []).append(piece)
        for name, values in examples.items():
            scores = as_tensor(name, values).detach().cpu().double()
            self._pieces.setdefault(name, []).append(scores.flatten())
            if name in BY_OUTPUT and 2 <= scores[:1].numel() <= OUTPUTS:
                count = torch.full_like(scores[0], len(scores))
                # Batches of another shape have sums of their own.
                key = f"{name}{list(scores.shape[1:])}"
                _add(self._sums, {key: torch.stack([count, scores.sum(0)])})
        if self._folded or any(self._count(name) > self.limit for name in self._pieces):
            self._fold()

    def _fold(self) -> None:
        """Replace kept scores by their sums."""
        scores = {name: self[name] for name, pieces in self._pieces.items() if pieces}
        if "confidence" in scores:
            _add(self._folded, {BINS: confidence_sums(scores["confidence"], scores["accuracy"])})
        for name, values in scores.items():
            _add(self._folded, {name: torch.stack([values.new_tensor(len(values)), values.sum()])})
            self._pieces[name] = []

    def gather(self) -> Streaming:
        """Return the examples and sums of all processes, every one of which must call this."""
        if not (dist.is_available() and dist.is_initialized()):
            return self
        kept = {name: self[name] for name, pieces in self._pieces.items() if pieces}
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (kept, self._sums, self._folded, self.uncertainties))
        together = Streaming(self.limit)
        for examples, sums, folded, uncertainties in everyone:
            _add(together._folded, folded)
            together.update(examples, sums, uncertainties)
        return together

    def __getitem__(self, name: str) -> Tensor:
        """Return the score `name` of all examples, (N,).

        Raises:
            KeyError: If there is no such score, or it is not kept for each example.
        """
        if not self._pieces.get(name):
            kept = [each for each, pieces in self._pieces.items() if pieces]
            raise KeyError(
                f"no score {name!r} is kept for each of the examples, of which there may be more "
                f"than {self.limit}; available: {', '.join(kept)}"
            )
        return torch.cat(self._pieces[name])

    @property
    def uncertainties(self) -> dict[str, Tensor]:
        """The scores for ranking the examples, by name, each (N,)."""
        return {name: torch.cat(pieces) for name, pieces in self._uncertainties.items()}

    def compute(self, class_names: Sequence[str] | None = None) -> Metrics:
        """Return the metrics: the mean of each score, or the metrics derived from it.

        Args:
            class_names: Names of the classes in the names of metrics, `iou_cat`; by default their
                indices, `iou_0`.

        Raises:
            ValueError: If there are no scores.
        """
        found = Metrics()
        names = dict.fromkeys([*self._pieces, *self._folded])
        for name in names:
            if name == BINS:
                continue
            if not self._count(name):
                raise ValueError(
                    "metrics: there are no scores; the data are empty, or all labels are ignored."
                )
            if name == "confidence":
                found.update(self._calibration())
            elif name == "squared_error":
                found["rmse"] = math.sqrt(self._mean(name))
            else:
                found[name] = self._mean(name)
        if "classwise_gaps" in self._sums:
            gaps = self._sums["classwise_gaps"].abs().sum(-1).mean().item()
            found["classwise_ece"] = gaps / self._count("nll")
        if "confusion" in self._sums:
            found.update(_overlaps(self._sums["confusion"], class_names))
        for key, sums in self._sums.items():
            name = key.partition("[")[0]
            if name in BY_OUTPUT and sums[0].sum() == self._count(name):  # one shape for all
                found.update(_by_output(BY_OUTPUT[name], *sums))
        return found

    def _calibration(self) -> dict[str, float]:
        if BINS in self._folded:
            bins = self._folded[BINS]
            return {
                "ece": binned_calibration_error(bins),
                "adaptive_ece": binned_calibration_error(bins, adaptive=True),
                "aurc": binned_aurc(bins),
            }
        confidence, correct = self["confidence"], self["accuracy"]
        return {
            "ece": calibration_error(confidence, correct),
            "adaptive_ece": calibration_error(confidence, correct, adaptive=True),
            "aurc": aurc(confidence, correct),
        }

    def _count(self, name: str) -> int:
        if name in self._folded:
            return int(self._folded[name][0])
        return sum(map(len, self._pieces[name]))

    def _mean(self, name: str) -> float:
        if name in self._folded:
            count, total = self._folded[name].tolist()
            return float(total / count)
        return self[name].mean().item()


def _add(own: dict[str, Tensor], added: Mapping[str, Tensor]) -> None:
    """Add sums to those of the same name."""
    for name, value in added.items():
        value = value.detach().cpu().double()
        own[name] = own[name] + value if name in own else value


def _overlaps(confusion: Tensor, class_names: Sequence[str] | None) -> dict[str, float]:
    names = class_names or [str(k) for k in range(len(confusion))]
    each = {
        f"iou_{name}": value
        for name, value in zip(names, class_iou(confusion).tolist(), strict=True)
    }
    return {"miou": miou(confusion), **each}


def _by_output(metric: str, count: Tensor, total: Tensor) -> dict[str, float]:
    """Return the metric of each output, named by its indices: `rmse_0`, or `rmse_0_1`."""
    means = total / count
    values = (means.sqrt() if metric == "rmse" else means).flatten().tolist()
    indices = product(*(range(size) for size in means.shape))
    return {
        "_".join((metric, *map(str, index))): value
        for index, value in zip(indices, values, strict=True)
    }
