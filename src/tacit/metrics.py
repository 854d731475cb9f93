"""How good predicted probabilities are: accuracy, negative log-likelihood, calibration error."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def accuracy(log_probs: Tensor, labels: Tensor) -> float:
    """Return the share of examples whose most probable class is the label.

    Args:
        log_probs: Log-probabilities of shape (B, C); logits do as well.
        labels: Classes of shape (B,).

    Example:
        >>> import torch
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log(), torch.tensor([0, 0]))
        0.5
    """
    return (log_probs.argmax(-1) == labels).double().mean().item()


def nll(log_probs: Tensor, labels: Tensor) -> float:
    """Return the mean negative log-probability of the true class.

    Args:
        log_probs: Log-probabilities of shape (B, C).
        labels: Classes of shape (B,).

    Example:
        >>> import torch
        >>> round(nll(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0])), 4)  # log 2
        0.6931
    """
    return F.nll_loss(log_probs.double(), labels).item()


def ece(log_probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Return the expected calibration error: how far confidence is from accuracy.

    The confidences of the predicted classes are sorted into equal bins (low, high] of (0, 1]. The
    error is the mean over examples of |accuracy - mean confidence| of their bin.

    Args:
        log_probs: Log-probabilities of shape (B, C).
        labels: Classes of shape (B,).
        bins: Number of bins.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
        >>> round(ece(probs.log(), torch.tensor([0, 1])), 4)  # confidence 0.9, accuracy 0.5
        0.4
    """
    confidence, predicted = log_probs.double().exp().max(-1)
    right = (predicted == labels).double()
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gap.index_add_(0, bin_of, right - confidence)
    return gap.abs().sum().item() / len(labels)
