"""Means over examples with their standard errors, and comparisons of two models in words."""

from __future__ import annotations

import math

from torch import Tensor

CLEAR = 2  # standard errors from 0


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Return the mean of values (B,) and its standard error; NaN for fewer than two values."""
    values = values.double()
    error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return values.mean().item(), error


def auroc_difference(
    negative: tuple[Tensor, Tensor], positive: tuple[Tensor, Tensor]
) -> tuple[float, float]:
    """Return the AUROC of the first score minus that of the second, and its standard error.

    Of DeLong, DeLong and Clarke-Pearson (1988): the AUROC is the mean over negative examples of
    the share of positive ones with a larger score, and the mean over positive examples of the share
    of negative ones with a smaller score. The variances of these shares over the examples add.

    Args:
        negative: Two scores of the same negative examples, each (A,).
        positive: The same scores of the same positive examples, each (B,).
    """
    gaps = [p.double() - n.double()[:, None] for n, p in zip(negative, positive, strict=True)]
    first, second = ((gap > 0).double() + (gap == 0).double() / 2 for gap in gaps)  # (A, B)
    difference = first - second
    errors = (mean_and_error(difference.mean(dimension))[1] for dimension in (0, 1))
    return difference.mean().item(), math.hypot(*errors)


def compared(difference: float, error: float, better: str, worse: str, unit: str) -> str:
    """Return who is better by how much, or that it isn't clear.

    Args:
        difference: How much better the first is.
        error: Its standard error.
        better: Name of the first.
        worse: Name of the second.
        unit: Format of the numbers, and their unit after a space: ".1f points".
    """
    form, _, name = unit.partition(" ")
    size = f"{abs(difference):{form}} ± {error:{form}}{' ' * bool(name)}{name}"
    if abs(difference) <= CLEAR * error or math.isnan(error):
        return f"no clear difference, {size}"
    return f"{better if difference > 0 else worse} better by {size}"
