"""How far confidence is from accuracy, in bins."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tacit import _checks


class Bins(NamedTuple):
    """Examples in bins of confidence.

    Args:
        size: Examples in each bin.
        confidence: Their mean confidence; NaN in an empty bin.
        accuracy: The share of right ones; NaN in an empty bin.
    """

    size: Tensor
    confidence: Tensor
    accuracy: Tensor


def reliability(
    confidence: Tensor, correct: Tensor, bins: int = 15, *, adaptive: bool = False
) -> Bins:
    """Return how confident and how often right the examples of each bin of confidence are.

    Args:
        confidence: Probabilities of the predicted classes, (B,).
        correct: Whether they were right, (B,).
        bins: Number of bins.
        adaptive: Whether bins have as many examples each (up to one), in order of confidence,
            instead of the same width (low, high] in (0, 1].

    Examples:
        >>> import torch
        >>> reliability(torch.tensor([0.4, 0.9, 0.9]), torch.tensor([True, True, False]), bins=2)
        Bins(size=tensor([1., 2.], dtype=torch.float64), ...accuracy=tensor([1.0000, 0.5000], ...
    """
    if confidence.ndim != 1 or confidence.shape != correct.shape or not len(confidence):
        raise ValueError(
            "expected confidences and whether they were right, both of shape (B,); received "
            f"{tuple(confidence.shape)} and {tuple(correct.shape)}."
        )
    confidence, correct = confidence.double(), correct.double()
    where = bin_of(confidence, bins)
    if adaptive:
        order = confidence.argsort(stable=True)
        confidence, correct = confidence[order], correct[order]
        where = torch.arange(len(order), device=order.device) * bins // len(order)
    sums = confidence.new_zeros(3, bins)
    values = torch.stack([torch.ones_like(confidence), confidence, correct])
    sums.index_add_(1, where, values)
    return Bins(sums[0], sums[1] / sums[0], sums[2] / sums[0])


def calibration_error(
    confidence: Tensor, correct: Tensor, bins: int = 15, *, adaptive: bool = False
) -> float:
    """Return the expected calibration error from confidences and whether they were right.

    The mean over examples of |accuracy - mean confidence| of their bin; arguments as for
    `reliability`.
    """
    found = reliability(confidence, correct, bins, adaptive=adaptive)
    gaps = (found.accuracy - found.confidence).abs().nan_to_num()  # empty bins have no gap
    return ((found.size * gaps).sum() / found.size.sum()).item()


def bin_of(probs: Tensor, bins: int) -> Tensor:
    """Return the number of the bin (low, high] of each probability; 0 is in the first."""
    _checks.positive_integer("bins", bins)
    return (probs * bins).ceil().long().clamp(1, bins) - 1
