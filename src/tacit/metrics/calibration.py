"""Binned calibration: confidence against accuracy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tacit._support import checks
from tacit.metrics.arguments import Values, as_tensor


class Bins(NamedTuple):
    """Statistics of examples binned by confidence, each of shape (bins,).

    Attributes:
        size: Number of examples in each bin.
        confidence: Mean confidence in each bin; NaN if it is empty.
        accuracy: Accuracy in each bin; NaN if it is empty.

    Examples:
        >>> import torch
        >>> confidence, correct = torch.tensor([0.4, 0.9, 0.9]), torch.tensor([True, True, False])
        >>> bins = reliability(confidence, correct, bins=2)
        >>> (bins.accuracy - bins.confidence).round(decimals=2).tolist()  # below 0: too confident
        [0.6, -0.4]
    """

    size: Tensor
    confidence: Tensor
    accuracy: Tensor


def reliability(
    confidence: Values, correct: Values, bins: int = 15, *, adaptive: bool = False
) -> Bins:
    """Return size, mean confidence and accuracy of each confidence bin: a reliability diagram.

    Args:
        confidence: Probabilities of the predicted classes, (B,).
        correct: Whether each prediction was correct, (B,).
        bins: Number of bins.
        adaptive: Whether bins have equal numbers of examples (up to one), in order of confidence,
            instead of equal widths, (low, high] in (0, 1].

    Examples:
        >>> import torch
        >>> reliability(torch.tensor([0.4, 0.9, 0.9]), torch.tensor([True, True, False]), bins=2)
        Bins(size=tensor([1., 2.], dtype=torch.float64), ...accuracy=tensor([1.0000, 0.5000], ...
    """
    confidence, correct = confidences(confidence, correct)
    if confidence.min() < 0 or confidence.max() > 1 + 1e-6:  # single precision rounds
        outside = confidence.min() if confidence.min() < 0 else confidence.max()
        raise ValueError(f"confidence: expected values from 0 to 1, received {outside:.4g}.")
    where = bin_of(confidence, bins)
    if adaptive:
        order = confidence.argsort()
        # Ties have no order, so each example gets the mean accuracy of its tie.
        confidence, correct = confidence[order], tied_mean(confidence[order], correct[order])
        where = torch.arange(len(order)) * bins // len(order)
    sums = confidence.new_zeros(3, bins)
    values = torch.stack([torch.ones_like(confidence), confidence, correct])
    sums.index_add_(1, where, values)
    return Bins(sums[0], sums[1] / sums[0], sums[2] / sums[0])


def calibration_error(
    confidence: Values, correct: Values, bins: int = 15, *, adaptive: bool = False
) -> float:
    """Return the expected calibration error of confidences.

    It is the mean over examples of |accuracy - mean confidence| of their bin. For confidences of
    any kind; `ece` computes them from probabilities of classes.

    Args:
        confidence: Confidences, from 0 to 1, (B,).
        correct: Whether each prediction was correct, (B,).
        bins: Number of bins.
        adaptive: Whether bins have equal numbers of examples, instead of equal widths.

    Examples:
        >>> import torch
        >>> confidence, correct = torch.tensor([0.9, 0.9]), torch.tensor([True, False])
        >>> round(calibration_error(confidence, correct), 4)  # accuracy 0.5
        0.4
    """
    found = reliability(confidence, correct, bins, adaptive=adaptive)
    full = found.size > 0
    gaps = (found.accuracy - found.confidence)[full].abs()
    return ((found.size[full] * gaps).sum() / found.size.sum()).item()


def confidences(confidence: Values, correct: Values) -> tuple[Tensor, Tensor]:
    """Return confidences and correctness, (B,) each, in double precision on the CPU.

    Raises:
        ValueError: If they are not non-empty vectors of one length, a confidence is NaN, or
            `correct` holds other values than 0 to 1.
    """
    confidence, correct = (
        as_tensor(name, values).detach().cpu().double()
        for name, values in (("confidence", confidence), ("correct", correct))
    )
    if confidence.ndim != 1 or confidence.shape != correct.shape or not len(confidence):
        raise ValueError(
            "expected non-empty confidence and correct, both of shape (B,); received "
            f"{tuple(confidence.shape)} and {tuple(correct.shape)}."
        )
    if confidence.isnan().any():
        raise ValueError("some confidences are NaN.")
    if not ((correct >= 0) & (correct <= 1)).all():  # NaN included
        raise ValueError(
            "correct: expected 0 or 1 for each example, whether its prediction was correct; "
            f"received values from {correct.min():.4g} to {correct.max():.4g}."
        )
    return confidence, correct


def bin_of(probs: Tensor, bins: int) -> Tensor:
    """Return the index of the bin (low, high] of each probability; 0 is in the first bin."""
    checks.positive_integer("bins", bins)
    edges = torch.arange(1, bins, device=probs.device).to(probs) / bins
    return torch.bucketize(probs, edges)


def tied_mean(ordered: Tensor, values: Tensor) -> Tensor:
    """Return values with those of tied scores replaced by their mean, (B,).

    Args:
        ordered: Sorted scores, (B,).
        values: One value for each score, (B,).
    """
    _, group, sizes = ordered.unique_consecutive(return_inverse=True, return_counts=True)
    means: Tensor = values.new_zeros(len(sizes)).index_add_(0, group, values) / sizes
    return means[group]
