"""Uncertainty over seeds, and what can be decided from it.

No criterion has a threshold of its own: a number is compared with a reference computed beside it,
and the 95 % interval of their difference over seeds decides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.studies.bench.summary import standard_error, student_t_within

SEEDS = 5  # the paper's number of seeds, needed to decide that there is no difference
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % interval, by Student's t.

    Args:
        mean: The mean; infinite if all runs diverged, NaN if a number is missing.
        low: Lower end; minus infinity if unknown, as for a single seed.
        high: Upper end.
        count: Number of seeds.
    """

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        if math.isinf(self.high - self.low) or math.isnan(self.high - self.low):
            return f"{self.mean:+.3g} ({self.count} seed{'s' * (self.count != 1)})"
        return f"{self.mean:+.3g} ({self.low:+.3g} to {self.high:+.3g})"


def interval(values: Iterable[float | None], comparisons: int = 1) -> Interval:
    """Return mean and 95 % interval of values over seeds.

    Args:
        values: One value per seed; None if it is missing.
        comparisons: Number of intervals that shall all be right with 95 % probability (Bonferroni).
    """
    numbers = [math.nan if value is None else value for value in values]
    count = len(numbers)
    if numbers and all(number in (math.inf, -math.inf) for number in numbers):
        mean = statistics.fmean(numbers)
        return Interval(mean, mean, mean, count)
    if count < 2 or not all(map(math.isfinite, numbers)):
        mean = statistics.fmean(numbers) if numbers else math.nan
        return Interval(mean, -math.inf, math.inf, count)
    mean = statistics.fmean(numbers)
    half = student_t(1 - (1 - LEVEL) / comparisons, count - 1) * standard_error(numbers)
    return Interval(mean, mean - half, mean + half, count)


def student_t(level: float, freedom: int) -> float:
    """Return t with probability `level` in (-t, t) under Student's t, by bisection."""
    low, high = 0.0, 1.0
    while student_t_within(high, freedom) < level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_within(middle, freedom) < level else (low, middle)
    return high


def paired(
    ours: Mapping[Any, float], theirs: Mapping[Any, float], comparisons: int = 1
) -> Interval:
    """Return the interval of the difference of two quantities over their common seeds."""
    common = sorted(ours.keys() & theirs.keys())
    return interval([ours[seed] - theirs[seed] for seed in common], comparisons)


def lower(difference: Interval) -> bool | None:
    """Return whether a difference is below 0; None if the interval contains 0."""
    if difference.high < 0:
        return True
    return False if difference.low > 0 else None


def higher(difference: Interval) -> bool | None:
    """Return whether a difference is above 0; None if the interval contains 0."""
    return lower(negated(difference))


def no_higher(difference: Interval) -> bool | None:
    """Return whether a difference is not above 0.

    An interval that contains 0 is decided with the paper's number of seeds only.
    """
    if difference.low > 0:
        return False
    return True if difference.high < 0 or difference.count >= SEEDS else None


def no_lower(difference: Interval) -> bool | None:
    """Return whether a difference is not below 0, as `no_higher`."""
    return no_higher(negated(difference))


def no_different(difference: Interval) -> bool | None:
    """Return whether a difference contains 0, with the paper's number of seeds."""
    if difference.low > 0 or difference.high < 0:
        return False
    return True if difference.count >= SEEDS else None


def negated(found: Interval) -> Interval:
    """Return the interval of the negative."""
    return Interval(-found.mean, -found.high, -found.low, found.count)


def within(difference: Interval, reference: float) -> bool | None:
    """Return whether a difference is at most a reference, with its whole interval."""
    if difference.high <= reference:
        return True
    return False if difference.low > reference else None


def all_of(states: Iterable[bool | None]) -> bool | None:
    """Return False if any state is False, else None if any is None, else True."""
    found = list(states)
    if False in found:
        return False
    return None if None in found or not found else True


def any_of(states: Iterable[bool | None]) -> bool | None:
    """Return True if any state is True, else None if any is None, else False."""
    found = all_of(None if state is None else not state for state in states)
    return None if found is None else not found


def shortfall(arguments: Mapping[str, Any], paper: Mapping[str, Any]) -> str:
    """Return where a run is smaller than the paper's, in words; empty if nowhere.

    Args:
        arguments: Arguments of the run.
        paper: Sizes of the paper's; None is "all".
    """
    found = []
    for name, size in paper.items():
        given = arguments.get(name)
        if given is not None and (size is None or given < size):
            whole = "all" if size is None else f"{size:,}"
            found.append(f"{name.replace('_', ' ')} {given:,} instead of {whole}")
    return ", ".join(found)


def listed(found: Mapping[str, Interval] | Mapping[int, Interval], joint: str = ", ") -> str:
    """Return intervals by name as text."""
    return joint.join(f"{name} {each}" for name, each in found.items())


def geometric(values: Sequence[float | None]) -> float:
    """Return the mean logarithm of values; NaN if one is missing, infinite if one diverged."""
    logs = [math.nan if not v or v < 0 else math.log(v) for v in values]
    return statistics.fmean(logs) if logs else math.nan
