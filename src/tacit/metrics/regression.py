"""Metrics of point predictions and prediction intervals."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.metrics.arguments import Values, as_tensor, between_0_and_1


def rmse(mean: Values, targets: Values) -> float:
    """Return the root mean squared error.

    Examples:
        >>> import torch
        >>> round(rmse(torch.zeros(2), torch.tensor([1.0, 1.0])), 4)
        1.0
    """
    mean, targets = _tensors(mean=mean, targets=targets)
    return (mean.cpu().double() - targets.cpu().double()).square().mean().sqrt().item()


def coverage(low: Values, high: Values, targets: Values) -> float:
    """Return the fraction of targets within their intervals, endpoints included.

    Examples:
        >>> import torch
        >>> coverage(torch.zeros(4), torch.ones(4), torch.tensor([0.0, 0.5, 1.0, 2.0]))
        0.75
    """
    low, high, targets = _tensors(low=low, high=high, targets=targets)
    return ((low <= targets) & (targets <= high)).cpu().double().mean().item()


def interval_score(low: Values, high: Values, targets: Values, level: float = 0.9) -> Tensor:
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
    low, high, targets = map(_real, _tensors(low=low, high=high, targets=targets))
    level = between_0_and_1("level", level)
    outside = (low - targets).clamp_min(0) + (targets - high).clamp_min(0)
    return high - low + 2 / (1 - level) * outside


def _real(values: Tensor) -> Tensor:
    """Return integers as floating-point numbers: differences of unsigned ones would wrap around."""
    return values if values.is_floating_point() else values.to(torch.get_default_dtype())


def _tensors(**given: Values) -> list[Tensor]:
    """Return arguments of the same shape as tensors; the last one is the targets."""
    *predicted, targets = (as_tensor(name, values) for name, values in given.items())
    for each in predicted:
        # (B,) and (B, 1) would silently broadcast to every pair of examples.
        if each.shape != targets.shape or not targets.numel():
            raise ValueError(
                "expected predictions and targets of the same shape, received "
                f"{tuple(each.shape)} and {tuple(targets.shape)}."
            )
    return [*predicted, targets]
