"""The class dimension of logits: the last one, or dimension 1 as in torch's `cross_entropy`.

Dimensions are counted with the batch first, without the sample dimension.
"""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

DIMS = (1, -1)
RESOLVE = (
    "Pass Categorical(class_dim=1) for the order of torch's cross_entropy, (B, C, ...), or "
    "class_dim=-1 for classes last, (B, ..., C)."
)


class Layout(NamedTuple):
    """How outputs fit targets.

    Args:
        sampled: Whether the first dimension of the outputs is the sample dimension.
        dims: Dimensions that may be the class dimension, 1 and -1; both for outputs (B, C).
        positions: Number of dimensions apart from samples, batch and classes.
    """

    sampled: bool
    dims: tuple[int, ...]
    positions: int


def check_class_dim(given: object) -> int | None:
    """Return the class dimension if it is 1, -1 or None, else raise ValueError."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, Integral) or given not in DIMS:
        raise ValueError(f"class_dim: expected 1, -1 or None, received {given!r}.")
    return int(given)


def layout(outputs: torch.Size, targets: torch.Size, samples: bool | None) -> Layout | None:
    """Return how outputs fit targets, or None.

    Targets have the shape of the outputs without class and sample dimension, perhaps with a
    trailing dimension of 1.

    Args:
        outputs: Shape of the outputs.
        targets: Shape of the targets.
        samples: Whether the outputs have a sample dimension; None infers it.
    """
    shapes = [targets, targets[:-1]] if len(targets) > 1 and targets[-1] == 1 else [targets]
    for labels in shapes:
        sampled = len(outputs) == len(labels) + 2
        own = outputs[1:] if sampled else outputs
        if not labels or len(own) != len(labels) + 1 or samples not in (None, sampled):
            continue
        rests = {1: (own[0], *own[2:]), -1: own[:-1]}
        if dims := tuple(dim for dim in DIMS if rests[dim] == labels):
            return Layout(sampled, dims, len(own) - 2)
    return None


def classes_last(outputs: Tensor, dim: int, *, sampled: bool) -> Tensor:
    """Return outputs with the class dimension last."""
    return outputs if dim == -1 else outputs.movedim(dim + sampled, -1)


def misfit(
    name: str, outputs: Tensor, targets: Tensor, dims: tuple[int, ...], source: str
) -> ValueError:
    """Return the error for outputs and targets that don't fit.

    Args:
        name: Name of the likelihood or function.
        outputs: The outputs.
        targets: The targets.
        dims: Dimensions at which they would fit.
        source: What determines another class dimension, or "".
    """
    received = f"outputs of shape {tuple(outputs.shape)} and targets of shape"
    if dims and source:
        return ValueError(
            f"{name}: {received} {tuple(targets.shape)} fit with the classes in dimension "
            f"{dims[0]}, but {source}. Use one order of dimensions, or one likelihood for each."
        )
    one_hot = targets.ndim > 1 and targets.shape in (outputs.shape, outputs.shape[1:])
    return ValueError(
        f"{name}: {received} {tuple(targets.shape)} don't fit. Expected one label for each example "
        "or position: the shape of the outputs without the class dimension, which is 1 or the last."
        + (" For one-hot targets pass targets.argmax(class_dim)." if one_hot else "")
    )


def ambiguous(outputs: Tensor, why: str) -> ValueError:
    """Return the error for outputs with two dimensions that may be the class dimension."""
    return ValueError(
        f"Categorical: outputs of shape {tuple(outputs.shape)} have two dimensions that may be the "
        f"class dimension{why}. {RESOLVE}"
    )
