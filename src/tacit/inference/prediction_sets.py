"""Sets of classes and intervals of numbers with a coverage guarantee; made by `tacit.conformal`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.likelihood.predictive import check_labels, counted
from tacit.metrics.arguments import Values, as_tensor


def whole_labels(targets: Values) -> Tensor:
    """Return labels as integers; they may be booleans or whole numbers of any type.

    Raises:
        ValueError: If some are not whole numbers.
    """
    labels = as_tensor("targets", targets)
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise ValueError("targets: expected labels, received numbers that are not whole.")
    return labels.long()


@dataclass(frozen=True, eq=False, repr=False)
class PredictionSets:
    """A set of classes for each of B examples.

    Args:
        members: Whether each class is in the set, (B, ..., C).
        level: Probability with which a set contains the true class.
        class_names: Names of the classes, if known.
        ignore_index: Label of positions that don't count.

    Examples:
        >>> import torch
        >>> members = torch.tensor([[True, False, False], [True, True, False]])
        >>> sets = PredictionSets(members, level=0.9, class_names=("cat", "dog", "fox"))
        >>> sets.size, sets.label_names
        (tensor([1, 2]), [['cat'], ['cat', 'dog']])
        >>> sets.coverage([0, 2])
        0.5
    """

    members: Tensor
    level: float
    class_names: tuple[str, ...] | None = None
    ignore_index: int | None = None

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        size = self.size.double().mean().item() if len(self) else 0.0
        return f"PredictionSets({len(self)} examples, level {self.level:g}, mean size {size:.2f})"

    @property
    def size(self) -> Tensor:
        """Number of classes in each set, (B, ...)."""
        return self.members.sum(-1)

    @property
    def label_names(self) -> list[list[str]]:
        """Names of the classes in each set, or their indices if the classes have no names."""
        names = self.class_names or [str(k) for k in range(self.members.shape[-1])]
        flat = self.members.flatten(0, -2).tolist()
        return [[name for name, inside in zip(names, row, strict=True) if inside] for row in flat]

    def coverage(self, targets: Values) -> float:
        """Return the fraction of sets that contain their label."""
        labels = _shaped(whole_labels(targets), self.members.shape[:-1]).to(self.members.device)
        check_labels(labels, self.members.shape[-1], self.ignore_index)
        kept = counted(labels, self.ignore_index)
        inside = self.members.gather(-1, labels.masked_fill(~kept, 0)[..., None])[..., 0]
        return inside[kept].double().mean().item()


@dataclass(frozen=True, eq=False, repr=False)
class PredictionIntervals:
    """An interval for each target of B examples.

    Args:
        low: Lower bounds, (B, ...).
        high: Upper bounds, (B, ...).
        level: Probability with which an interval, or all of an example's, contain the target.
        joint: Whether it holds for all targets of an example at once.

    Examples:
        >>> import torch
        >>> low, high = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 2.0])
        >>> intervals = PredictionIntervals(low, high, level=0.9)
        >>> intervals.width, intervals.coverage([1.0, 3.0])
        (tensor([2., 1.]), 0.5)
    """

    low: Tensor
    high: Tensor
    level: float
    joint: bool = False

    def __len__(self) -> int:
        return len(self.low)

    def __repr__(self) -> str:
        width = self.width.double().mean().item() if len(self) else 0.0
        kind = "boxes" if self.joint else "intervals"
        return (
            f"PredictionIntervals({len(self)} examples, {kind} of level {self.level:g}, mean width "
            f"{width:.4g})"
        )

    @property
    def width(self) -> Tensor:
        """Widths of the intervals, (B, ...)."""
        return self.high - self.low

    def coverage(self, targets: Values) -> float:
        """Return the fraction of intervals, or of boxes, that contain their targets."""
        y = _shaped(as_tensor("targets", targets), self.low.shape).to(self.low)
        inside = (self.low <= y) & (y <= self.high)
        inside = inside.reshape(len(self), -1).all(1) if self.joint else inside
        return inside.double().mean().item()


def _shaped(targets: Tensor, expected: torch.Size) -> Tensor:
    """Return targets in the expected shape; (B,) and (B, 1) are interchangeable."""
    found = targets.shape
    if found not in (expected, (*expected, 1)) and (*found, 1) != expected:
        raise ValueError(f"targets: expected the shape {tuple(expected)}, received {tuple(found)}.")
    return targets.reshape(expected)
