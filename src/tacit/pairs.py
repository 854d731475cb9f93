"""Inputs and targets in memory, and the loss that fits the targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit.likelihood import Categorical
from tacit.likelihood.base import aligned

Data: TypeAlias = tuple[Tensor, Tensor]
"""Inputs and targets, examples first."""

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to a number."""


def check_pair(name: str, data: Any) -> Data:
    """Return inputs and targets as tensors, if there are as many of both.

    Args:
        name: What it is called, for the error message.
        data: A pair of tensors or arrays.
    """
    parts = list(data) if isinstance(data, tuple | list) else [data]
    if len(parts) != 2:
        received = f"{len(parts)} parts" if isinstance(data, tuple | list) else type(data).__name__
        raise TypeError(f"{name}: expected a pair, inputs and targets; received {received}.")
    inputs, targets = (as_tensor(name, part) for part in parts)
    check_lengths(name, [inputs], targets)
    return inputs, targets


def as_tensor(name: str, data: Any) -> Tensor:
    """Return a tensor or array as a tensor.

    Args:
        name: What it is called, for the error message.
        data: What may be one.
    """
    try:
        return torch.as_tensor(data)
    except (TypeError, ValueError, RuntimeError):
        kind = type(data).__name__
        raise TypeError(f"{name}: expected tensors or arrays, received {kind}.") from None


def check_lengths(name: str, inputs: Sequence[Tensor], targets: Tensor | None) -> None:
    """Raise ValueError unless there are examples, and as many in each tensor.

    Args:
        name: What the data are called, for the error message.
        inputs: Tensors with the examples first.
        targets: The same, or None.
    """
    every = [*inputs] if targets is None else [*inputs, targets]
    shapes = " and ".join(str(tuple(tensor.shape)) for tensor in every)
    if not inputs or not all(tensor.ndim for tensor in every):
        raise ValueError(f"{name}: expected examples in the first dimension, received {shapes}.")
    if len({len(tensor) for tensor in every}) > 1:
        raise ValueError(f"{name}: expected one target for each input, received shapes {shapes}.")
    if not len(every[0]):
        raise ValueError(f"{name}: there are no examples.")


def loss_for(targets: Tensor) -> Loss:
    """Return the cross-entropy for integer targets, the mean squared error for others."""
    return squared_error if targets.is_floating_point() else Categorical().loss


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error; shapes that would broadcast are refused."""
    outputs, targets = aligned("squared error", outputs, targets, event=0, samples=False)
    return F.mse_loss(outputs, targets)


def made_net(make_net: Callable[[int], nn.Module], width: int) -> nn.Module:
    """Return the network that `make_net` makes for a width, if it is one."""
    if isinstance(make_net, nn.Module) or not callable(make_net):
        raise TypeError(
            "make_net: expected a function from a width to a network, received "
            f"{type(make_net).__name__}."
        )
    net = make_net(width)
    if not isinstance(net, nn.Module):
        raise TypeError(
            f"make_net: expected an nn.Module for width {width}, received {type(net).__name__}."
        )
    return net


def check_widths_differ(make_net: Callable[[int], nn.Module], small: int, large: int) -> None:
    """Raise ValueError if networks of two widths have the same number of parameters."""
    counts = [sum(p.numel() for p in made_net(make_net, w).parameters()) for w in (small, large)]
    if counts[0] == counts[1]:
        raise ValueError(
            f"make_net: networks of width {small} and {large} have the same number of parameters, "
            f"{counts[0]}; does it use the width, and make a new network each time?"
        )
