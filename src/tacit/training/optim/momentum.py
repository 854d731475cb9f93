"""SGD with momentum on rows of which only a few have a gradient in a step.

A step of SGD replaces a row s and its momentum v by linear combinations of s, v and the row's
gradient g. Where g is zero, the combination is the same 2 x 2 matrix for all rows. The product of
these matrices is tracked for each row, and the row itself is updated when it next has a gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

SETTINGS = "lr", "momentum", "weight_decay", "dampening", "nesterov", "maximize"
NEGLIGIBLE = 1e-12  # a coefficient this small relative to another is rounding error
MIN_MOMENTUM_SCALE = 1e-3  # a momentum's scale factor below this is multiplied out


@dataclass(frozen=True)
class RowUpdate:
    """A step of SGD on a row s, its momentum v and its gradient g.

    First v becomes v + v_g g, then s becomes s_s s + s_v v + s_g g with this v. If `s_first`, s is
    updated first, then v becomes v_s s + v_v v + v_g g, all with the old s and v.
    """

    s_s: float
    s_v: float
    s_g: float
    v_s: float
    v_v: float
    v_g: float
    s_first: bool

    def apply(self, s: Tensor, v: Tensor | None, gradient: Tensor, scale: float) -> None:
        """Update s and v in place.

        Args:
            s: The row.
            v: Its momentum, or None.
            gradient: Its gradient, up to `scale`.
            scale: The number to multiply the gradient by.
        """
        old = s.clone() if self.v_s else s
        if v is not None and not self.s_first:
            v.add_(gradient, alpha=scale * self.v_g)
        combine(s, self.s_s, (v, self.s_v), (gradient, scale * self.s_g))
        if v is not None and self.s_first:
            combine(v, self.v_v, (old, self.v_s), (gradient, scale * self.v_g))


class RowMomentum:
    """The closed form of SGD with momentum on rows without a gradient.

    The tensors of a layer that are in the same parameter group share one.

    Rows are stored as they will be at their next turn if settings stay constant, momenta up to a
    scale factor. This saves most operations of a step.

    Attributes:
        has_momentum: Whether rows have a momentum.
        stepped: Whether any step was taken.
        transitions: For each row the matrix from the stored to the current (s, v): (R, 2, 2).

    Args:
        rank: R, the number of rows.
        has_momentum: Whether rows have a momentum at the start.
    """

    def __init__(self, rank: int, has_momentum: bool) -> None:
        self.has_momentum, self.stepped = has_momentum, False
        self.transitions = np.tile(np.eye(2), (rank, 1, 1))
        self._largest_lookahead = 0.0  # in absolute value; the scale of rounding errors
        # Settings of the last step with the step matrix and lookahead that follow from them.
        self._cached: tuple[Any, np.ndarray, float] = None, np.eye(2, 3), 0.0

    def current(self, row: int) -> tuple[float, float]:
        """Return a and b such that the current row is a s + b v, with s and v as stored."""
        a, b = self.transitions[row][0]
        return float(a), float(b) if abs(b) > NEGLIGIBLE * self._largest_lookahead else 0.0

    def step(self, group: Mapping[str, Any], rows: Collection[int]) -> dict[int, RowUpdate]:
        """Take a step of SGD, as torch does with the settings of a parameter group.

        Args:
            group: The parameter group.
            rows: Indices of the rows that have a gradient.

        Returns:
            The updates of these rows.
        """
        self.stepped = True
        settings = tuple(float(group[name]) for name in SETTINGS), self.has_momentum, len(rows)
        if settings != self._cached[0]:
            matrix = self._step_matrix(*settings[0])
            waiting = max(0, len(self.transitions) // len(rows) - 1)  # steps until the next turn
            lookahead = float(np.linalg.matrix_power(matrix[:, :2], waiting)[0, 1])
            self._largest_lookahead = max(self._largest_lookahead, abs(lookahead))
            self._cached = settings, matrix, lookahead
        _, matrix, lookahead = self._cached
        self.has_momentum = self.has_momentum or group["momentum"] != 0
        self.transitions = matrix[:, :2] @ self.transitions
        return {row: self._row_update(row, matrix[:, 2], lookahead) for row in rows}

    def _row_update(self, row: int, gradient: np.ndarray, lookahead: float) -> RowUpdate:
        """Return the update of a row that is stored as s + lookahead v from now on.

        Let s' = a s + b v + c g and v' = q v + r g, and store v' / q = v + r / q g in place of v'.
        Then s' + lookahead v' = a s + (b + lookahead q) v' / q + (c - b r / q) g. At a row's turn,
        if settings have not changed, b is 0 before the step, and the last term is 0 without
        Nesterov momentum.

        Args:
            row: Index of the row.
            gradient: c and r.
            lookahead: Coefficient of v in the row at its next turn.
        """
        ((a, b), (p, q)), (c, r) = self.transitions[row].tolist(), gradient.tolist()
        # The last condition avoids cancellation in c - b r / q.
        if p == 0 and q > MIN_MOMENTUM_SCALE and abs(b * r) <= 2 * q * abs(c):
            self.transitions[row] = [[1.0, -lookahead * q], [0.0, q]]
            rest = c - b * r / q
            rest = rest if abs(rest) > NEGLIGIBLE * abs(c) else 0.0
            return RowUpdate(a, b + lookahead * q, rest, 0.0, 1.0, r / q, s_first=False)
        self.transitions[row] = [[1.0, -lookahead], [0.0, 1.0]]
        return RowUpdate(
            a + lookahead * p, b + lookahead * q, c + lookahead * r, p, q, r, s_first=True
        )

    def _step_matrix(
        self,
        lr: float,
        momentum: float,
        weight_decay: float,
        dampening: float,
        nesterov: float,
        maximize: float,
    ) -> np.ndarray:
        """Return the new s and v as linear combinations of s, v and the gradient: (2, 3)."""
        s, v, gradient = np.eye(3)
        gradient = (-gradient if maximize else gradient) + weight_decay * s
        direction = gradient
        if momentum:
            # Torch initializes the momentum with the gradient.
            v = momentum * v + (1.0 - dampening) * gradient if self.has_momentum else gradient
            direction = gradient + momentum * v if nesterov else v
        return np.stack([s - lr * direction, v])


def combine(tensor: Tensor, factor: float, *others: tuple[Tensor | None, float]) -> None:
    """Multiply a tensor in place and add multiples of others, skipping operations without effect.

    Args:
        tensor: The tensor.
        factor: The number to multiply it by.
        *others: Pairs of a tensor, or None, and its coefficient.
    """
    if factor != 1.0:
        tensor.mul_(factor)
    for other, alpha in others:
        if alpha and other is not None:
            tensor.add_(other, alpha=alpha)
