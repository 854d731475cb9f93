"""Isotonic regression: increasing maps from predicted to observed probabilities."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tacit.likelihood.predictive import ProbabilityMap

CLASS_EXAMPLES = 10  # fewest validation examples of a class
MOST = 50  # largest number of segments of the map of a distribution
CRITICAL = 1.358  # of the Kolmogorov-Smirnov statistic, at 5 %
RESOLVED = 1e-6  # probabilities closer to 0 or 1, or to each other, can't be told apart
UNRESOLVED = 0.05  # largest share of targets with such probabilities

Array = NDArray[np.float64]


def class_map(probs: Tensor, targets: Tensor) -> ProbabilityMap:
    """Return the isotonic regression of each class against the rest.

    Its values stay between 1 / (n + 2) and (n + 1) / (n + 2) for n examples (the rule of
    succession): data don't prove that a class never occurs, and the NLL of new data stays finite.

    Args:
        probs: Predicted probabilities (N, C).
        targets: Labels (N,), or probabilities of the classes (N, C).
    """
    classes, low = probs.shape[-1], 1 / (len(probs) + 2)
    hits = targets if targets.is_floating_point() else F.one_hot(targets, classes)
    p, t = (values.cpu().double().numpy() for values in (probs, hits))
    return _padded([isotonic(p[:, k], t[:, k], low, 1 - low) for k in range(classes)])


def isotonic(x: Array, y: Array, low: float, high: float) -> Array:
    """Return the knots, (2, K), of the nondecreasing function with the least squared error.

    Args:
        x: Arguments (N,); equal ones share a value.
        y: Values (N,).
        low: Lower bound of the function.
        high: Upper bound of the function.
    """
    x, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    fitted = pooled(np.bincount(group, y) / counts, counts.astype(float)).clip(low, high)
    kept = np.ones(len(x), bool)  # ends of constant pieces
    kept[1:-1] = (fitted[1:-1] != fitted[:-2]) | (fitted[1:-1] != fitted[2:])
    return np.stack([x[kept], fitted[kept]])


def pooled(values: Array, weights: Array) -> Array:
    """Return the weighted nondecreasing least-squares fit: adjacent violators are pooled.

    Args:
        values: (N,).
        weights: (N,), above 0.
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight and size
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, size = value, weight, 1
        while blocks and blocks[-1][0] >= mean:
            other, own, length = blocks.pop()
            mean = (own * other + total * mean) / (own + total)
            total, size = total + own, size + length
        blocks.append((mean, total, size))
    return np.repeat([block[0] for block in blocks], [block[2] for block in blocks])


def distribution_map(pit: Tensor, least: int) -> ProbabilityMap | None:
    """Return the map of the predicted distribution functions to their distribution on data.

    The values F(y) of targets are uniform if predictions are calibrated. The map is their empirical
    distribution function (Kuleshov et al., 2018, whose isotonic regression it equals), linear
    between about sqrt(n) of the n order statistics: each segment has enough targets for its slope,
    which is a density. Each output has its own map.

    Args:
        pit: F(y) for each target, (B, ...), in double precision.
        least: Smallest number of distinct values.

    Returns:
        The maps, or None if all are the identity: an output whose values are uniform by a
        Kolmogorov-Smirnov test at 5 % keeps its distribution.

    Raises:
        ValueError: If there are too few distinct values, or too many are 0 or 1 up to rounding.
    """
    columns = pit.reshape(len(pit), -1).movedim(0, -1).cpu().numpy()
    found = [_uniform_map(values, least) for values in columns]
    if all(each is None for each in found):
        return None
    identity = np.array([[0.0, 1.0], [0.0, 1.0]])
    maps = _padded([identity if each is None else each for each in found])
    return ProbabilityMap(maps.knots.reshape(*pit.shape[1:], 2, -1))


def _uniform_map(values: Array, least: int) -> Array | None:
    """Return knots (2, K) of the empirical distribution of values, or None if it is uniform."""
    size = len(values)
    outside = np.mean((values < RESOLVED) | (values > 1 - RESOLVED))
    if outside > UNRESOLVED:
        raise ValueError(
            f"isotonic: {outside:.0%} of the targets are so far from their predictions that the "
            "predicted probabilities round to 0 or 1. Let calibrate set the noise scale first, "
            "which Gaussian(learn=False) doesn't allow."
        )
    x, counts = np.unique(values, return_counts=True)
    if len(x) < least:
        raise ValueError(
            f"isotonic: expected at least {least} distinct predicted probabilities, received "
            f"{len(x)}; the targets, or the predictions, take too few values for a continuous "
            "distribution."
        )
    ends = counts.cumsum()
    gap = max((ends / size - x).max(), (x - (ends - counts) / size).max())
    if gap * (math.sqrt(size) + 0.12 + 0.11 / math.sqrt(size)) <= CRITICAL:  # Stephens (1970)
        return None
    levels = (ends - (counts - 1) / 2) / (size + 1)  # equal values share their mean rank
    wanted = np.arange(1, segments := min(MOST, math.isqrt(size))) / segments
    chosen = [(0.0, 0.0)]
    for i in np.unique(np.searchsorted(levels, wanted).clip(0, len(x) - 1)):
        if chosen[-1][0] + RESOLVED <= x[i] <= 1 - RESOLVED:
            chosen.append((x[i], levels[i]))
    knots = np.array([*chosen, (1.0, 1.0)]).T
    slopes = np.diff(knots[1]) / np.diff(knots[0])
    gain = np.log(slopes[np.searchsorted(knots[0], values).clip(1, len(slopes)) - 1]).mean()
    return knots if gain > 0 else None  # never a larger NLL


def _padded(maps: list[Array]) -> ProbabilityMap:
    """Return maps with the same number of knots, at least 2: the last ones are repeated."""
    most = max(2, *(knots.shape[-1] for knots in maps)) if maps else 2
    same = [np.pad(knots, ((0, 0), (0, most - knots.shape[-1])), mode="edge") for knots in maps]
    return ProbabilityMap(torch.from_numpy(np.stack(same)))
