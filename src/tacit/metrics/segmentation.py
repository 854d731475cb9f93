"""Metrics of dense class predictions, from a confusion matrix that adds up over batches."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit._support import checks
from tacit.metrics.arguments import Values, as_tensor


def confusion_matrix(predicted: Values, labels: Values, classes: int) -> Tensor:
    """Return the number of positions by true and predicted class, (C, C).

    Matrices of parts of the data add up to that of all of it.

    Args:
        predicted: Predicted classes, of any shape.
        labels: True classes, of the same shape.
        classes: Number of classes C.

    Examples:
        >>> confusion_matrix([0, 1, 1], [0, 0, 1], 2)
        tensor([[1, 1],
                [0, 1]])
    """
    checks.positive_integer("classes", classes)
    found, true = (
        _indices(name, values, classes)
        for name, values in (("predicted", predicted), ("labels", labels))
    )
    if found.shape != true.shape:
        raise ValueError(
            "expected predictions and labels of the same shape, received "
            f"{tuple(found.shape)} and {tuple(true.shape)}."
        )
    pairs = (true * classes + found).flatten()
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def class_iou(confusion: Values) -> Tensor:
    """Return the intersection over union of each class, (C,).

    It is TP / (TP + FP + FN), the Jaccard index; NaN for a class that is neither predicted nor
    true at any position.

    Args:
        confusion: Confusion matrix, (C, C), with a row for each true class.

    Examples:
        >>> class_iou([[1, 1], [0, 1]])
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    matrix = as_tensor("confusion", confusion).detach().cpu().double()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(
            f"confusion: expected a matrix of shape (C, C), received {tuple(matrix.shape)}."
        )
    both = matrix.diagonal()
    union: Tensor = matrix.sum(0) + matrix.sum(1) - both
    return both / union


def miou(confusion: Values) -> float:
    """Return the mean intersection over union of the classes that are predicted or true.

    Args:
        confusion: Confusion matrix, (C, C), with a row for each true class.

    Examples:
        >>> miou(confusion_matrix([0, 1, 1], [0, 0, 1], classes=3))
        0.5
    """
    return class_iou(confusion).nanmean().item()


def _indices(name: str, values: Values, classes: int) -> Tensor:
    found = as_tensor(name, values).detach().cpu()
    integers = not found.is_floating_point() and found.dtype != torch.bool
    if not integers or (found.numel() and not 0 <= found.min() <= found.max() < classes):
        span = f" from {found.min()} to {found.max()}" if found.numel() else ""
        raise ValueError(
            f"{name}: expected integers from 0 to {classes - 1}, received {found.dtype}{span}."
        )
    return found.long()
