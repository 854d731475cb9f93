"""Metrics of point predictions and prediction intervals."""

from __future__ import annotations

from torch import Tensor


def rmse(mean: Tensor, targets: Tensor) -> float:
    """Return the root mean squared error.

    Examples:
        >>> import torch
        >>> round(rmse(torch.zeros(2), torch.tensor([1.0, 1.0])), 4)
        1.0
    """
    _check(mean, targets)
    return (mean.cpu().double() - targets.cpu().double()).square().mean().sqrt().item()


def coverage(low: Tensor, high: Tensor, targets: Tensor) -> float:
    """Return the share of targets within their intervals, endpoints included.

    Examples:
        >>> import torch
        >>> coverage(torch.zeros(4), torch.ones(4), torch.tensor([0.0, 0.5, 1.0, 2.0]))
        0.75
    """
    _check(low, targets)
    _check(high, targets)
    return ((low <= targets) & (targets <= high)).cpu().double().mean().item()


def interval_score(low: Tensor, high: Tensor, targets: Tensor, level: float = 0.9) -> Tensor:
    """Return the interval score of each target: smaller is better.

    The score is the width of the interval plus 2 / (1 - level) times the distance of the target to
    it. Its mean is smallest for the true quantiles (Gneiting and Raftery, 2007).

    Args:
        low: Lower endpoints.
        high: Upper endpoints, of the same shape.
        targets: Observed values, of the same shape.
        level: Nominal coverage of the intervals, between 0 and 1.

    Examples:
        >>> import torch
        >>> interval_score(torch.zeros(2), torch.ones(2), torch.tensor([0.5, 1.5]))
        tensor([ 1., 11.])
    """
    _check(low, targets)
    _check(high, targets)
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number between 0 and 1, received {level!r}.")
    outside = (low - targets).clamp_min(0) + (targets - high).clamp_min(0)
    return high - low + 2 / (1 - level) * outside


def _check(predicted: Tensor, targets: Tensor) -> None:
    # (B,) and (B, 1) would silently broadcast to every pair of examples.
    if predicted.shape != targets.shape or not targets.numel():
        raise ValueError(
            "expected predictions and targets of the same shape, received "
            f"{tuple(predicted.shape)} and {tuple(targets.shape)}."
        )
