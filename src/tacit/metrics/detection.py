"""Detection by a score, for instance of foreign (out-of-distribution) inputs by their entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.metrics.arguments import Values, as_tensor


def auroc(negative: Values, positive: Values) -> float:
    """Return the area under the ROC curve.

    It is the probability that a positive example has a larger score than a negative one, with ties
    counted as one half. 0.5 is chance, 1 is perfect.

    Args:
        negative: Scores of shape (A,), for instance entropies of test inputs.
        positive: Scores of shape (B,), for instance entropies of foreign inputs.

    Examples:
        >>> import torch
        >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
        0.875
    """
    negative, positive = _scores("auroc", negative, positive)
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False)
    up_to = torch.searchsorted(ordered, positive, right=True)
    return ((below + up_to).double().mean() / (2 * len(negative))).item()


def fpr95(negative: Values, positive: Values) -> float:
    """Return the false positive rate at a true positive rate of 95 %.

    The threshold is the largest score that at least 95 % of the positive examples reach. 0 is
    perfect.

    Args:
        negative: Scores of shape (A,), for instance entropies of test inputs.
        positive: Scores of shape (B,), for instance entropies of foreign inputs.

    Examples:
        >>> import torch
        >>> fpr95(torch.tensor([0.1, 0.2, 0.3, 0.9]), torch.tensor([0.5, 0.6, 0.7]))
        0.25
    """
    negative, positive = _scores("fpr95", negative, positive)
    ordered = positive.sort(descending=True).values
    needed = -(-95 * len(ordered) // 100)  # ceiling in integer arithmetic, which is exact
    return (negative >= ordered[needed - 1]).double().mean().item()


def aupr(negative: Values, positive: Values) -> float:
    """Return the area under the precision-recall curve, as the average precision.

    It is the sum over thresholds of the increase in recall times the precision, without
    interpolation; examples with equal scores share a threshold. Unlike `auroc` it depends on the
    proportion of positive examples: that proportion is chance, 1 is perfect.

    Args:
        negative: Scores of shape (A,), for instance entropies of test inputs.
        positive: Scores of shape (B,), for instance entropies of foreign inputs.

    Examples:
        >>> import torch
        >>> aupr(torch.tensor([0.1, 0.6]), torch.tensor([0.5, 0.9]))
        0.8333333333333333
    """
    negative, positive = _scores("aupr", negative, positive)
    thresholds, counts = positive.unique(return_counts=True)
    true = counts.flip(0).cumsum(0).flip(0)  # positive examples that reach each threshold
    false = len(negative) - torch.searchsorted(negative.sort().values, thresholds, right=False)
    precision = true.double() / (true + false)
    total: Tensor = (counts * precision).sum()
    return total.item() / len(positive)


def _scores(name: str, *given: Values) -> tuple[Tensor, Tensor]:
    """Return two non-empty vectors of scores in double precision, on the CPU."""
    negative, positive = (as_tensor(name, scores).detach().cpu().double() for scores in given)
    if negative.ndim != 1 or positive.ndim != 1 or not len(negative) or not len(positive):
        raise ValueError(
            f"{name}: expected two non-empty vectors of scores, received shapes "
            f"{tuple(negative.shape)} and {tuple(positive.shape)}."
        )
    if negative.isnan().any() or positive.isnan().any():
        raise ValueError(f"{name}: some scores are NaN.")
    return negative, positive
