"""Inputs and targets in memory, and the default loss for the targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor
from torch.nn import functional as F

from tacit.data.batches import as_tensor, check_lengths
from tacit.likelihood import Categorical
from tacit.likelihood.base import aligned

Data: TypeAlias = tuple[Tensor, Tensor]
"""Inputs and targets, each with the examples along the first axis."""

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A function from outputs and targets to a scalar loss."""


def check_pair(name: str, data: Any) -> Data:
    """Return inputs and targets as tensors of the same length.

    Args:
        name: Name of the argument, for error messages.
        data: A pair of tensors or arrays.

    Raises:
        TypeError: If `data` is not a pair of tensors or arrays.
        ValueError: If the lengths differ or there are no examples.
    """
    parts = list(data) if isinstance(data, tuple | list) else [data]
    if len(parts) != 2:
        received = f"{len(parts)} parts" if isinstance(data, tuple | list) else type(data).__name__
        raise TypeError(f"{name}: expected a pair, inputs and targets; received {received}.")
    inputs, targets = (as_tensor(name, part) for part in parts)
    check_lengths(name, [inputs], targets)
    return inputs, targets


def loss_for(targets: Tensor) -> Loss:
    """Return the cross-entropy for integer targets, the mean squared error otherwise."""
    return squared_error if targets.is_floating_point() else Categorical().loss


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error; shapes that would broadcast raise ValueError."""
    outputs, targets = aligned("squared error", outputs, targets, event=0, samples=False)
    return F.mse_loss(outputs, targets)
