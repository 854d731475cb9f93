"""How good predicted probabilities are: accuracy, NLL, calibration, telling inputs apart."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit import _checks


def accuracy(log_probs: Tensor, labels: Tensor) -> float:
    """Return the share of examples whose most probable class is the label.

    Args:
        log_probs: Log-probabilities of shape (B, C); logits do as well.
        labels: Classes of shape (B,).

    Examples:
        >>> import torch
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log(), torch.tensor([0, 0]))
        0.5
    """
    _check(log_probs, labels)
    return (log_probs.argmax(-1) == labels).double().mean().item()


def nll(log_probs: Tensor, labels: Tensor) -> float:
    """Return the mean negative log-probability of the true class.

    Args:
        log_probs: Log-probabilities of shape (B, C).
        labels: Classes of shape (B,).

    Examples:
        >>> import torch
        >>> round(nll(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0])), 4)  # log 2
        0.6931
    """
    _check(log_probs, labels)
    _check_normalised(log_probs)
    return F.nll_loss(log_probs.double(), labels).item()


def ece(log_probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Return the expected calibration error: how far confidence is from accuracy.

    The confidences of the predicted classes are sorted into equal bins (low, high] of (0, 1]. The
    error is the mean over examples of |accuracy - mean confidence| of their bin.

    Args:
        log_probs: Log-probabilities of shape (B, C).
        labels: Classes of shape (B,).
        bins: Number of bins.

    Examples:
        >>> import torch
        >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
        >>> round(ece(probs.log(), torch.tensor([0, 1])), 4)  # confidence 0.9, accuracy 0.5
        0.4
    """
    _check(log_probs, labels)
    _check_normalised(log_probs)
    _checks.positive_integer("bins", bins)
    confidence, predicted = log_probs.double().exp().max(-1)
    right = (predicted == labels).double()
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gap.index_add_(0, bin_of, right - confidence)
    return gap.abs().sum().item() / len(labels)


def brier(log_probs: Tensor, labels: Tensor) -> float:
    """Return the mean squared distance of probabilities to the true class, from 0 to 2.

    Args:
        log_probs: Log-probabilities of shape (B, C).
        labels: Classes of shape (B,).

    Examples:
        >>> import torch
        >>> round(brier(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0])), 4)
        0.5
    """
    _check(log_probs, labels)
    _check_normalised(log_probs)
    truth = F.one_hot(labels, log_probs.shape[-1])
    return (log_probs.double().exp() - truth).square().sum(-1).mean().item()


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
    if negative.ndim != 1 or positive.ndim != 1 or not len(negative) or not len(positive):
        raise ValueError(
            "auroc: expected two vectors of scores, received shapes "
            f"{tuple(negative.shape)} and {tuple(positive.shape)}."
        )
    ordered = negative.double().sort().values
    below = torch.searchsorted(ordered, positive.double(), right=False)
    up_to = torch.searchsorted(ordered, positive.double(), right=True)
    return ((below + up_to).double().mean() / (2 * len(negative))).item()


def _check(log_probs: Tensor, labels: Tensor) -> None:
    # Comparing (B,) with (B, 1) would silently compare every pair of examples.
    if log_probs.ndim != 2 or labels.shape != log_probs.shape[:1] or not len(labels):
        raise ValueError(
            "expected log-probabilities of shape (B, C) and labels of shape (B,), received "
            f"{tuple(log_probs.shape)} and {tuple(labels.shape)}."
        )


def _check_normalised(log_probs: Tensor) -> None:
    if log_probs.double().logsumexp(-1).abs().max() > 1e-2:
        raise ValueError("expected log-probabilities: apply log_softmax to logits first.")
