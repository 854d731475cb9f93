"""Calibration and rejection from sums in fine bins of confidence, for more examples than fit.

The fine bins refine those of `calibration_error`, so it is exact. Examples in one fine bin count as
tied, which makes the adaptive error and the risk-coverage curve approximate. Networks are often
certain, so the bins are finer towards a confidence of 1.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

COARSE = 15  # bins of `calibration_error`
EQUAL = 64 * COARSE  # bins of equal width
NEAR_ONE = 64  # further bins per factor of 10 in 1 - confidence, from 1e-3 to 1e-12


@lru_cache(maxsize=1)
def _edges() -> Tensor:
    equal = torch.arange(1, EQUAL, dtype=torch.float64) / EQUAL
    certain = 1 - torch.logspace(-3, -12, 9 * NEAR_ONE + 1, dtype=torch.float64)
    return torch.cat([equal, certain]).sort().values


def confidence_sums(confidence: Tensor, correct: Tensor) -> Tensor:
    """Return number, sum of confidences and sum of correctness in each fine bin, (3, bins).

    Args:
        confidence: Probabilities of the predicted classes, (N,), in double precision.
        correct: Whether each prediction was correct, (N,), in double precision.
    """
    edges = _edges()
    values = torch.stack([torch.ones_like(confidence), confidence, correct])
    sums = confidence.new_zeros(3, len(edges) + 1)
    return sums.index_add_(1, torch.bucketize(confidence, edges), values)


def binned_calibration_error(sums: Tensor, *, adaptive: bool = False) -> float:
    """Return the expected calibration error from `confidence_sums`.

    Args:
        sums: Sums in fine bins, (3, bins).
        adaptive: Whether the 15 bins have equal numbers of examples; a fine bin on the border
            between two is divided in proportion.
    """
    total = sums[0].sum()
    if adaptive:
        borders = (torch.arange(COARSE + 1) * total / COARSE).ceil()
        up_to = torch.stack([_cumulative(sums[0], values, borders) for values in sums[1:]])
        confidence, correct = up_to.diff(dim=1)
    else:
        lower = torch.cat([sums.new_zeros(1), _edges()])
        coarse = torch.arange(1, COARSE).to(lower) / COARSE
        where = torch.bucketize(lower, coarse, right=True)
        _, confidence, correct = sums.new_zeros(3, COARSE).index_add_(1, where, sums)
    error: Tensor = (correct - confidence).abs().sum() / total
    return error.item()


def binned_aurc(sums: Tensor) -> float:
    """Return the area under the risk-coverage curve from `confidence_sums`.

    With E errors among the c most confident examples and an error rate e in the next n, which are
    tied, the error rates of the next n coverages sum to
    sum_k (E + (k - c) e) / k = n e + (E - c e) (H(c + n) - H(c)), with harmonic numbers H.
    """
    sums = sums.flip(1)[:, sums[0].flip(0) > 0]
    size, wrong = sums[0], sums[0] - sums[2]
    before, errors, rate = size.cumsum(0) - size, wrong.cumsum(0) - wrong, wrong / size
    harmonic = torch.digamma(before + size + 1) - torch.digamma(before + 1)
    area = (wrong + (errors - before * rate) * harmonic).sum() / size.sum()
    return area.item()


def _cumulative(sizes: Tensor, values: Tensor, counts: Tensor) -> Tensor:
    """Return the sums of values over the first examples, for each count; ties are divided."""
    ends = sizes.cumsum(0)
    k = torch.searchsorted(ends, counts).clamp_max(len(ends) - 1)
    before = ends[k] - sizes[k]
    share = (counts - before) / sizes[k].clamp_min(1)
    return values.cumsum(0)[k] - values[k] + share * values[k]
