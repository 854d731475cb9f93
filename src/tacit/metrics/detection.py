"""Telling two kinds of inputs apart by a score, for instance known and foreign ones."""

from __future__ import annotations

import torch
from torch import Tensor


def auroc(negative: Tensor, positive: Tensor) -> float:
    """Return how well a score tells two sets apart: the area under the ROC curve.

    The probability that a positive example has a larger score than a negative one, ties counted
    half. 0.5 is chance, 1 is perfect.

    Args:
        negative: Scores of shape (A,), for instance entropies of known inputs.
        positive: Scores of shape (B,), for instance entropies of foreign inputs.

    Examples:
        >>> import torch
        >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
        0.875
    """
    _check("auroc", negative, positive)
    negative, positive = negative.cpu().double(), positive.cpu().double()
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False)
    up_to = torch.searchsorted(ordered, positive, right=True)
    return ((below + up_to).double().mean() / (2 * len(negative))).item()


def fpr95(negative: Tensor, positive: Tensor) -> float:
    """Return the share of false alarms where 95 % of the positive examples are found.

    The threshold is the largest score that at least 95 % of the positive examples reach. 0 is
    perfect.

    Args:
        negative: Scores of shape (A,), for instance entropies of known inputs.
        positive: Scores of shape (B,), for instance entropies of foreign inputs.

    Examples:
        >>> import torch
        >>> fpr95(torch.tensor([0.1, 0.2, 0.3, 0.9]), torch.tensor([0.5, 0.6, 0.7]))
        0.25
    """
    _check("fpr95", negative, positive)
    negative, positive = negative.cpu().double(), positive.cpu().double()
    ordered = positive.sort(descending=True).values
    needed = -(-95 * len(ordered) // 100)  # rounded up, without errors of floating point
    return (negative >= ordered[needed - 1]).double().mean().item()


def _check(name: str, negative: Tensor, positive: Tensor) -> None:
    if negative.ndim != 1 or positive.ndim != 1 or not len(negative) or not len(positive):
        raise ValueError(
            f"{name}: expected two vectors of scores, received shapes "
            f"{tuple(negative.shape)} and {tuple(positive.shape)}."
        )
    if negative.isnan().any() or positive.isnan().any():
        raise ValueError(f"{name}: some scores are NaN.")
