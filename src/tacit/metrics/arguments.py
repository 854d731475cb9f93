"""Arguments of metrics: tensors, arrays and lists."""

from __future__ import annotations

from numbers import Real
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

Values: TypeAlias = Tensor | ArrayLike
"""Numbers in a tensor, a NumPy array or nested lists."""


def as_tensor(name: str, values: Values) -> Tensor:
    """Return numbers as a tensor; arrays and lists keep their precision.

    Args:
        name: Name of the argument in the error message.
        values: A tensor, an array or nested lists.

    Raises:
        TypeError: If they are not numbers.
    """
    try:
        # A copy in C order: torch takes neither negative strides nor read-only memory.
        found = (
            values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, order="C"))
        )
    except (TypeError, ValueError, RuntimeError):
        kind = type(values).__name__
        raise TypeError(
            f"{name}: expected a tensor, an array or a list of numbers, received {kind}."
        ) from None
    if found.is_complex():
        raise TypeError(f"{name}: expected real numbers, received {found.dtype}.")
    return found


def between_0_and_1(name: str, value: object) -> float:
    """Return `value` if it is a number between 0 and 1, both excluded."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: expected a number between 0 and 1, received {value!r}.")
    if not 0 < float(value) < 1:
        raise ValueError(f"{name}: expected a number between 0 and 1, received {value!r}.")
    return float(value)
