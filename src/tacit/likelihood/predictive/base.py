"""Base class of predictive distributions: predictions for a batch, with uncertainty."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import product
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from tacit import metrics
from tacit.metrics.arguments import Values
from tacit.metrics.streaming import data_frame

Self = TypeVar("Self", bound="Predictive")


class Predictive(ABC):
    """Predictive distributions of B examples, from M functions; a plain network is one.

    Subclasses are frozen dataclasses.

    Examples:
        >>> import torch
        >>> from tacit.likelihood.predictive import ClassPredictive
        >>> p = ClassPredictive(torch.tensor([[[0.0, 2.0], [3.0, 0.0]]]))  # 1 function, 2 examples
        >>> p[1].label, p.to_numpy()["probs"].shape, p.to(torch.float64).probs.dtype
        (tensor([0]), (2, 2), torch.float64)
        >>> p.scores([1, 0])["accuracy"]
        1.0
    """

    columns: ClassVar[tuple[str, ...]]
    """Attributes that `to_numpy` and `to_frame` export, each a tensor with B rows."""

    uncertainties: ClassVar[Mapping[str, Callable[[Any], Tensor]]]
    """Scores of `uncertainty` by name; the first is the one that detection reports as its own."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of examples B."""

    @abstractmethod
    def __getitem__(self: Self, index: int | slice | Tensor) -> Self:
        """Return the predictions for some examples; an integer keeps the batch dimension."""

    @abstractmethod
    def errors(self, targets: Values) -> dict[str, Tensor]:
        """Return the scores of each example by name, each (B,).

        Args:
            targets: Targets of the B examples, in a tensor, an array or a list.
        """

    def sums(self, targets: Values) -> dict[str, Tensor]:
        """Return further statistics that the metrics need, summed over the examples."""
        return {}

    def scores(self, targets: Values) -> metrics.Metrics:
        """Return the metrics of the predictions: `nll` and the task's other metrics."""
        collected = metrics.Streaming()
        collected.update(self.errors(targets), self.sums(targets))
        return collected.compute(self._class_names())

    def uncertainty(self, by: str) -> Tensor:
        """Return a score of uncertainty, (B, ...): larger means less certain.

        Args:
            by: Name of the score, a key of `uncertainties`.

        Raises:
            ValueError: If these predictions have no such score.
        """
        if by not in self.uncertainties:
            raise ValueError(
                f"uncertainty: expected one of {', '.join(self.uncertainties)}; received {by!r}."
            )
        return self.uncertainties[by](self)

    def to(self: Self, *args: Any, **kwargs: Any) -> Self:
        """Return a copy with its tensors on another device or in another dtype.

        Lightning's `move_data_to_device` and similar functions call it.

        Args:
            *args: Arguments of `torch.Tensor.to`: a device, a dtype, or both.
            **kwargs: Keyword arguments of `torch.Tensor.to`.
        """
        given = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        moved = {n: v.to(*args, **kwargs) for n, v in given.items() if isinstance(v, Tensor)}
        return type(self)(**{**given, **moved})

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
        columns: dict[str, Any] = {}
        for name, array in self.to_numpy().items():
            columns.update(_split(name, array, self._labels(name)))
        return data_frame(columns)

    def _class_names(self) -> tuple[str, ...] | None:
        """Return the names of the classes, or None to number them."""
        return None

    def _labels(self, column: str) -> list[str] | None:
        """Return names for the entries of a column's last dimension, or None to number them."""
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


def _split(name: str, array: Any, labels: list[str] | None) -> dict[str, Any]:
    """Return an array with B rows as columns by name: `probs_cat`, or `probs_0_cat` for (B, D, C).

    Args:
        name: Name of the array.
        array: (B, ...).
        labels: Names of the entries of the last dimension, or None to number them.
    """
    flat = array.reshape(len(array), -1)
    if array.ndim == 1 or flat.shape[1] == 1:
        return {name: flat[:, 0]}
    parts = [[str(i) for i in range(size)] for size in array.shape[1:]]
    if labels is not None:
        parts[-1] = labels
    return {"_".join((name, *part)): flat[:, i] for i, part in enumerate(product(*parts))}
