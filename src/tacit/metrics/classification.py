"""Metrics of predicted class probabilities."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from tacit._support import checks
from tacit.metrics.arguments import Values, as_tensor
from tacit.metrics.calibration import bin_of, calibration_error


def accuracy(log_probs: Values, labels: Values, k: int = 1) -> float:
    """Return the fraction of examples whose label is among the k most probable classes.

    Args:
        log_probs: Log-probabilities of shape (B, C), or logits.
        labels: Class indices of shape (B,).
        k: Number of classes that count as predicted; ties go to the lower class index.

    Examples:
        >>> import torch
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log(), torch.tensor([0, 0]))
        0.5
    """
    log_probs, labels = _checked(log_probs, labels, normalised=False)
    if checks.positive_integer("k", k) > log_probs.shape[-1]:
        raise ValueError(f"k: expected at most {log_probs.shape[-1]} classes, received {k}.")
    return among_first(log_probs, labels, k).mean().item()


def among_first(log_probs: Values, labels: Values, k: int) -> Tensor:
    """Return 1 where the label is among the k most probable classes, else 0, (B,).

    Args:
        log_probs: Log-probabilities of shape (B, C), or logits.
        labels: Class indices of shape (B,).
        k: Number of classes; ties go to the lower class index.

    Examples:
        >>> import torch
        >>> probs = torch.tensor([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1]])
        >>> among_first(probs.log(), torch.tensor([1, 2]), k=2)
        tensor([1., 0.], dtype=torch.float64)
    """
    log_probs, labels = as_tensor("log_probs", log_probs), as_tensor("labels", labels)
    first = log_probs.cpu().argsort(dim=-1, descending=True, stable=True)[:, :k]
    found: Tensor = (first == labels.cpu()[:, None]).any(-1)
    return found.double()


def nll(log_probs: Values, labels: Values) -> float:
    """Return the mean negative log-probability of the true class.

    Args:
        log_probs: Log-probabilities of shape (B, C).
        labels: Class indices of shape (B,).

    Examples:
        >>> import torch
        >>> round(nll(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0])), 4)  # log 2
        0.6931
    """
    log_probs, labels = _checked(log_probs, labels)
    return F.nll_loss(log_probs, labels).item()


def ece(log_probs: Values, labels: Values, bins: int = 15, *, adaptive: bool = False) -> float:
    """Return the expected calibration error: the mean gap between confidence and accuracy.

    The confidences of the predicted classes are sorted into bins. The error is the mean over
    examples of |accuracy - mean confidence| of their bin.

    Args:
        log_probs: Log-probabilities of shape (B, C).
        labels: Class indices of shape (B,).
        bins: Number of bins.
        adaptive: Whether bins have equal numbers of examples, instead of equal widths, (low, high]
            in (0, 1].

    Examples:
        >>> import torch
        >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
        >>> round(ece(probs.log(), torch.tensor([0, 1])), 4)  # confidence 0.9, accuracy 0.5
        0.4
    """
    log_probs, labels = _checked(log_probs, labels)
    confidence, predicted = log_probs.exp().max(-1)
    return calibration_error(confidence, predicted == labels, bins, adaptive=adaptive)


def classwise_ece(log_probs: Values, labels: Values, bins: int = 15) -> float:
    """Return the mean over classes of the calibration error of their probabilities.

    The probabilities of each class, predicted or not, are sorted into bins (low, high] of equal
    width, the first including 0, and compared with the frequency of the class (Kull et al., 2019).

    Args:
        log_probs: Log-probabilities of shape (B, C).
        labels: Class indices of shape (B,).
        bins: Number of bins.

    Examples:
        >>> import torch
        >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
        >>> round(classwise_ece(probs.log(), torch.tensor([0, 1])), 4)
        0.4
    """
    log_probs, labels = _checked(log_probs, labels)
    return classwise_gaps(log_probs, labels, bins).abs().sum(-1).mean().item() / len(labels)


def classwise_gaps(log_probs: Values, labels: Values, bins: int = 15) -> Tensor:
    """Return the sum over examples of occurrence minus probability, by class and bin, (C, bins).

    The sums over parts of the data add up to the sum over all of it, from which `classwise_ece` is
    computed.

    Args:
        log_probs: Log-probabilities of shape (B, C).
        labels: Class indices of shape (B,).
        bins: Number of bins.

    Examples:
        >>> import torch
        >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1]])  # class 0 is expected 1.8 times
        >>> classwise_gaps(probs.log(), torch.tensor([0, 1]), bins=2).round(decimals=2).tolist()
        [[0.0, -0.8], [0.8, 0.0]]
    """
    log_probs, labels = _checked(log_probs, labels)
    probs = log_probs.exp()
    return frequency_gaps(probs, F.one_hot(labels, probs.shape[-1]), bins)


def frequency_gaps(probs: Tensor, frequencies: Tensor, bins: int = 15) -> Tensor:
    """Return the sum over examples of frequency minus probability, by class and bin, (C, bins).

    Args:
        probs: Predicted probabilities, (B, C).
        frequencies: One-hot labels, or the probabilities of soft targets, (B, C).
        bins: Number of bins.
    """
    where = bin_of(probs, bins).T
    gaps = probs.new_zeros(probs.shape[-1], bins)
    return gaps.scatter_add_(1, where, (frequencies - probs).T)


def brier(log_probs: Values, labels: Values) -> float:
    """Return the Brier score: the mean squared distance to the one-hot label, from 0 to 2.

    Args:
        log_probs: Log-probabilities of shape (B, C).
        labels: Class indices of shape (B,).

    Examples:
        >>> import torch
        >>> round(brier(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0])), 4)
        0.5
    """
    log_probs, labels = _checked(log_probs, labels)
    truth = F.one_hot(labels, log_probs.shape[-1])
    return (log_probs.exp() - truth).square().sum(-1).mean().item()


def _checked(
    log_probs: Values, labels: Values, *, normalised: bool = True
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (B, C) in double precision and labels (B,), on the CPU."""
    log_probs, labels = as_tensor("log_probs", log_probs), as_tensor("labels", labels)
    # Labels of shape (B, 1) would silently broadcast to every pair of examples.
    if log_probs.ndim != 2 or labels.shape != log_probs.shape[:1] or not len(labels):
        raise ValueError(
            "expected log-probabilities of shape (B, C) and labels of shape (B,), received "
            f"{tuple(log_probs.shape)} and {tuple(labels.shape)}."
        )
    if log_probs.isnan().any():
        raise ValueError("some log-probabilities are NaN.")
    if labels.is_floating_point() or labels.min() < 0 or labels.max() >= log_probs.shape[-1]:
        raise ValueError(
            f"labels: expected integers from 0 to {log_probs.shape[-1] - 1}, received "
            f"{labels.dtype} from {labels.min().item()} to {labels.max().item()}."
        )
    log_probs = log_probs.detach().cpu().double()
    # The tolerance of 5 % allows for half precision.
    if normalised and log_probs.logsumexp(-1).abs().max() > 5e-2:
        raise ValueError("expected log-probabilities: apply log_softmax to logits first.")
    return log_probs, labels.cpu().long()
