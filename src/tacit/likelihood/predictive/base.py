"""What every prediction is: a batch of examples, each with its uncertainty."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from tacit import metrics
from tacit.metrics.streaming import data_frame

Self = TypeVar("Self", bound="Predictive")


class Predictive(ABC):
    """Predictions for B examples, from M sampled functions or from one."""

    columns: ClassVar[tuple[str, ...]]
    """The quantities that `to_numpy` and `to_frame` give, each a tensor with B rows."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of examples B."""

    @abstractmethod
    def __getitem__(self: Self, index: int | slice | Tensor) -> Self:
        """Return the prediction for some of the examples; an integer keeps the batch dimension."""

    @abstractmethod
    def errors(self, targets: Tensor) -> dict[str, Tensor]:
        """Return how good each example's prediction was: numbers by name, each (B,)."""

    def sums(self, targets: Tensor) -> dict[str, Tensor]:
        """Return what metrics need beside `errors`, added up over the examples."""
        return {}

    def scores(self, targets: Tensor) -> metrics.Metrics:
        """Return how good the prediction was: `nll`, and what else the task has a name for."""
        collected = metrics.Streaming()
        collected.update(self.errors(targets), self.sums(targets))
        return collected.compute()

    def to_numpy(self) -> dict[str, Any]:
        """Return the quantities as arrays with B rows, by name."""
        found = {name: getattr(self, name).detach().cpu() for name in self.columns}
        # NumPy has no bfloat16.
        half = (torch.bfloat16, torch.float16)
        return {n: (t.float() if t.dtype in half else t).numpy() for n, t in found.items()}

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row per example; quantities of several columns split.

        Raises:
            ModuleNotFoundError: If pandas is not installed.
        """
        return data_frame(_split(self.to_numpy(), self._labels()))

    def _labels(self) -> list[str] | None:
        """Return names for the last dimension of quantities that have one."""
        return None


def rows(index: Any, size: int) -> Any:
    """Return an index that keeps the batch dimension, if there are such rows."""
    try:
        number = operator.index(index)
    except TypeError:
        return index  # a slice, a mask or several numbers
    if not -size <= number < size:
        raise IndexError(f"there are {size} predictions, asked for number {number}.")
    return slice(number, number + 1 or None)


def _split(arrays: Mapping[str, Any], labels: list[str] | None) -> dict[str, Any]:
    found = {}
    for name, array in arrays.items():
        flat = array.reshape(len(array), -1)
        if array.ndim == 1 or flat.shape[1] == 1:
            found[name] = flat[:, 0]
            continue
        parts = labels or [str(i) for i in range(flat.shape[1])]
        found.update({f"{name}_{part}": flat[:, i] for i, part in enumerate(parts)})
    return found
