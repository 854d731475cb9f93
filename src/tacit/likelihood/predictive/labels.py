"""Checks of class labels and class names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def check_labels(labels: Tensor, classes: int, ignore_index: int | None = None) -> None:
    """Raise an error unless labels are integers from 0 to `classes` - 1, or to be ignored."""
    wrong_kind = labels.dtype == torch.bool and classes != 2
    if wrong_kind or labels.is_floating_point() or labels.is_complex():
        raise TypeError(
            f"Categorical: expected integer labels from 0 to {classes - 1}, received "
            f"{labels.dtype}. For regression use likelihood=tacit.Gaussian()."
        )
    labels = labels if ignore_index is None else labels[counted(labels, ignore_index)]
    # This synchronises with the device, but a failed device-side assertion would end the process.
    if labels.numel():
        low, high = labels.min().item(), labels.max().item()
        if low < 0 or high >= classes:
            wrong = low if low < 0 else high
            if classes == 1 and low >= 0:
                raise ValueError(
                    f"Categorical: label {wrong} is out of range: the network has 1 output, and "
                    "Categorical needs one for each class. For labels 0 and 1 give it 2 outputs, "
                    "or use likelihood=tacit.Bernoulli()."
                )
            raise ValueError(
                f"Categorical: label {wrong} is out of range: the network has {classes} "
                f"outputs, so labels go from 0 to {classes - 1}."
            )


def counted(labels: Tensor, ignore_index: int | None) -> Tensor:
    """Return which labels count: all but those to be ignored."""
    if ignore_index is None:
        return torch.ones_like(labels, dtype=torch.bool)
    # In 8 bits -100 and 156 are equal.
    kept: Tensor = labels.long() != ignore_index
    return kept


def check_names(
    names: Sequence[str] | Sequence[int], argument: str = "class_names"
) -> tuple[str, ...]:
    """Return names as a tuple of strings, or raise an error unless they are distinct."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{argument}: expected a list of names, received {names!r}.")
    found = tuple(map(str, names))
    twice = [name for name, count in Counter(found).items() if count > 1]
    if twice:
        raise ValueError(
            f"{argument}: expected distinct names, received {', '.join(twice)} more than once."
        )
    return found


def check_number_of_names(names: Sequence[str] | None, targets: int) -> None:
    """Raise ValueError unless there is one name for each binary target of an example, or none."""
    if names is not None and len(names) != targets:
        raise ValueError(f"names: expected {targets}, one for each target; received {len(names)}.")
