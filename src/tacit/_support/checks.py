"""Argument checks whose messages state what was expected and what was received."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real


def positive_integer(name: str, value: object) -> int:
    """Return `value` as a Python integer of at least 1; booleans are rejected."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}: expected an integer of at least 1, received {value!r}.")
    if value < 1:
        raise ValueError(f"{name}: expected an integer of at least 1, received {value}.")
    return int(value)


def positive_number(name: str, value: object, *, above: float = 0.0) -> float:
    """Return `value` as a finite Python number greater than `above`; booleans are rejected."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: expected a number above {above:g}, received {value!r}.")
    if not above < _float(value) < math.inf:
        raise ValueError(f"{name}: expected a number above {above:g}, received {value!r}.")
    return float(value)


def nonnegative_number(name: str, value: object) -> float:
    """Return `value` as a finite Python number of at least 0; booleans are rejected."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: expected a number of at least 0, received {value!r}.")
    if not 0 <= _float(value) < math.inf:
        raise ValueError(f"{name}: expected a number of at least 0, received {value!r}.")
    return float(value)


def probability(name: str, value: object) -> float:
    """Return `value` as a Python number from 0 to 1; booleans are rejected."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: expected a number from 0 to 1, received {value!r}.")
    if not 0 <= _float(value) <= 1:
        raise ValueError(f"{name}: expected a number from 0 to 1, received {value!r}.")
    return float(value)


def finite_or_none(value: object) -> object:
    """Return None for a non-finite float, which JSON cannot represent; other values unchanged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sample_shape(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    """Return `value` as a shape; an integer M becomes (M,)."""
    sizes = value if isinstance(value, Sequence) else (value,)
    return tuple(positive_integer(name, size) for size in sizes)


def _float(value: Real) -> float:
    """Return a number as a float; integers beyond its range become infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
