"""Rows that SGD moves in one step and leaves to their momentum in many others.

A step of SGD makes a row s and its momentum v combinations of s, v and the row's gradient g. In
steps in which g is zero that is the same 2 x 2 matrix for all rows: the row coasts. The product of
these matrices is kept, and the row itself is touched when it has a gradient again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

SETTINGS = "lr", "momentum", "weight_decay", "dampening", "nesterov", "maximize"
NEGLIGIBLE = 1e-12  # a coefficient relative to another: nothing but rounding
SHRUNK = 1e-3  # a factor of the momentum; below, it is multiplied out


@dataclass(frozen=True)
class RowUpdate:
    """A step of SGD with a row s, its momentum v and its gradient g.

    v becomes v + v_g g and then s a combination of s, this v, and g; or, if the momentum is not
    alone (`s_first`), s becomes a combination of all that was, and then v.
    """

    s_s: float
    s_v: float
    s_g: float
    v_s: float
    v_v: float
    v_g: float
    s_first: bool

    def make(self, s: Tensor, v: Tensor | None, gradient: Tensor, scale: float) -> None:
        """Take the step; the gradient is yet to be multiplied by `scale`."""
        old = s.clone() if self.v_s else s
        if v is not None and not self.s_first:
            v.add_(gradient, alpha=scale * self.v_g)
        combine(s, self.s_s, (v, self.s_v), (gradient, scale * self.s_g))
        if v is not None and self.s_first:
            combine(v, self.v_v, (old, self.v_s), (gradient, scale * self.v_g))


class RowMomentum:
    """What SGD has done to each row, s, and its momentum, v, since the row was touched.

    The tensors of a layer that are in one parameter group have it in common.

    Rows are kept as they will be when it is their turn again, if the settings stay as they are, and
    momenta but for a factor: so most operations of a step can be left out.

    Args:
        rank: The number of rows.
        momentum: Whether there is a momentum.
    """

    def __init__(self, rank: int, momentum: bool) -> None:
        self.momentum, self.stepped = momentum, False
        self.coasts = np.tile(np.eye(2), (rank, 1, 1))  # row -> (s, v) now from (s, v) as kept
        self._far = 0.0  # the largest coefficient of v in s so far: others round relative to it
        # Settings of the step before; while they stay, so does what follows from them.
        self._known: tuple[Any, np.ndarray, float] = None, np.eye(2, 3), 0.0

    def present(self, row: int) -> tuple[float, float]:
        """Return what s is now, as a combination of s and v as kept."""
        a, b = self.coasts[row][0]
        return float(a), float(b) if abs(b) > NEGLIGIBLE * self._far else 0.0

    def step(self, group: Mapping[str, Any], rows: Collection[int]) -> dict[int, RowUpdate]:
        """Take a step of SGD, as torch does with the settings of this parameter group.

        Args:
            group: The parameter group.
            rows: Which rows have a gradient.
        """
        self.stepped = True
        settings = tuple(float(group[name]) for name in SETTINGS), self.momentum, len(rows)
        if settings != self._known[0]:
            change = self._change(*settings[0])
            turn = max(0, len(self.coasts) // len(rows) - 1)  # steps till it is their turn again
            ahead = float(np.linalg.matrix_power(change[:, :2], turn)[0, 1])
            self._far = max(self._far, abs(ahead))
            self._known = settings, change, ahead
        _, change, ahead = self._known
        self.momentum = self.momentum or group["momentum"] != 0
        self.coasts = change[:, :2] @ self.coasts
        return {row: self._move(row, change[:, 2], ahead) for row in rows}

    def _move(self, row: int, gradient: np.ndarray, ahead: float) -> RowUpdate:
        """Return the step of a row that is kept as s + ahead v from now on.

        With s' = a s + b v + c g and v' = q v + r g, and v' / q = v + r / q g kept in place of v':
        s' + ahead v' = a s + (b + ahead q) v' / q + (c - b r / q) g. When it is a row's turn and
        settings have not changed, b is 0 before the step, and the last term is 0 without Nesterov.
        """
        ((a, b), (p, q)), (c, r) = self.coasts[row].tolist(), gradient.tolist()
        if p == 0 and q > SHRUNK and abs(b * r) <= 2 * q * abs(c):  # else c - b r / q cancels
            self.coasts[row] = [[1.0, -ahead * q], [0.0, q]]
            rest = c - b * r / q
            rest = rest if abs(rest) > NEGLIGIBLE * abs(c) else 0.0
            return RowUpdate(a, b + ahead * q, rest, 0.0, 1.0, r / q, s_first=False)
        self.coasts[row] = [[1.0, -ahead], [0.0, 1.0]]
        return RowUpdate(a + ahead * p, b + ahead * q, c + ahead * r, p, q, r, s_first=True)

    def _change(
        self,
        lr: float,
        momentum: float,
        weight_decay: float,
        dampening: float,
        nesterov: float,
        maximize: float,
    ) -> np.ndarray:
        """Return the new s and v as combinations of s, v and the gradient: (2, 3)."""
        s, v, gradient = np.eye(3)
        gradient = (-gradient if maximize else gradient) + weight_decay * s
        direction = gradient
        if momentum:
            # Torch's momentum begins with the gradient.
            v = momentum * v + (1.0 - dampening) * gradient if self.momentum else gradient
            direction = gradient + momentum * v if nesterov else v
        return np.stack([s - lr * direction, v])


def combine(tensor: Tensor, factor: float, *others: tuple[Tensor | None, float]) -> None:
    """Multiply a tensor and add multiples of others, without what changes nothing."""
    if factor != 1.0:
        tensor.mul_(factor)
    for other, alpha in others:
        if alpha and other is not None:
            tensor.add_(other, alpha=alpha)
