"""Base class of predictive distributions: predictions for a batch, with uncertainty."""

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
    """Predictive distributions of B examples, from M functions; a plain network is one."""

    columns: ClassVar[tuple[str, ...]]
    """Attributes that `to_numpy` and `to_frame` export, each a tensor with B rows."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of examples B."""

    @abstractmethod
    def __getitem__(self: Self, index: int | slice | Tensor) -> Self:
        """Return the predictions for some examples; an integer keeps the batch dimension."""

    @abstractmethod
    def errors(self, targets: Tensor) -> dict[str, Tensor]:
        """Return the scores of each example by name, each (B,)."""

    def sums(self, targets: Tensor) -> dict[str, Tensor]:
        """Return further statistics that the metrics need, summed over the examples."""
        return {}

    def scores(self, targets: Tensor) -> metrics.Metrics:
        """Return the metrics of the predictions: `nll` and the task's other metrics."""
        collected = metrics.Streaming()
        collected.update(self.errors(targets), self.sums(targets))
        return collected.compute()

    def to_numpy(self) -> dict[str, Any]:
        """Return the attributes in `columns` as arrays with B rows, by name."""
        found = {name: getattr(self, name).detach().cpu() for name in self.columns}
        # NumPy has no bfloat16.
        half = (torch.bfloat16, torch.float16)
        return {n: (t.float() if t.dtype in half else t).numpy() for n, t in found.items()}

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row per example and one column per entry.

        Raises:
            ModuleNotFoundError: If pandas is not installed.
        """
        return data_frame(_split(self.to_numpy(), self._labels()))

    def _labels(self) -> list[str] | None:
        """Return names for the entries of the last dimension, or None to number them."""
        return None


def rows(index: Any, size: int) -> Any:
    """Return an index that keeps the batch dimension.

    Raises:
        IndexError: If an integer index is out of range.
    """
    try:
        number = operator.index(index)
    except TypeError:
        return index  # a slice, a mask or an index tensor
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of range for {size} predictions.")
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
