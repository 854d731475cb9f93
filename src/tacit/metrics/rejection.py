"""Selective prediction: accuracy when the least confident examples are rejected."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.metrics.arguments import Values
from tacit.metrics.calibration import confidences, tied_mean


def selective_accuracy(confidence: Values, correct: Values) -> Tensor:
    """Return the accuracy on the k most confident examples, for k = 1 to B, (B,).

    Ties have no order; the result is the expectation over a random one.

    Args:
        confidence: Any score by which examples are kept, largest first, (B,).
        correct: Whether each prediction was correct, (B,).

    Examples:
        >>> import torch
        >>> selective_accuracy(torch.tensor([0.9, 0.5, 0.7]), torch.tensor([True, False, True]))
        tensor([1.0000, 1.0000, 0.6667], dtype=torch.float64)
    """
    confidence, correct = confidences(confidence, correct)
    ordered = confidence.sort(descending=True)
    right = tied_mean(ordered.values, correct[ordered.indices])
    return right.cumsum(0) / torch.arange(1, len(right) + 1)


def aurc(confidence: Values, correct: Values) -> float:
    """Return the area under the risk-coverage curve: the error rate averaged over all coverages.

    0 is perfect; an uninformative confidence gives the error rate (Geifman and El-Yaniv, 2017).

    Args:
        confidence: Any score by which examples are kept, largest first, (B,).
        correct: Whether each prediction was correct, (B,).

    Examples:
        >>> import torch
        >>> round(aurc(torch.tensor([0.9, 0.5, 0.7]), torch.tensor([True, False, True])), 4)
        0.1111
    """
    return 1 - selective_accuracy(confidence, correct).mean().item()
