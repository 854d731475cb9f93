"""SGD with momentum on rows, only a few of which have a gradient in a step.

A step of SGD replaces a row s and its momentum v by linear combinations of s, v and the row's
gradient g. Where g is zero, the combination is the same 2 x 2 matrix for all rows. The product of
these matrices is tracked for each row, and the row itself is updated when it next has a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

SETTINGS = "lr", "momentum", "weight_decay", "dampening", "nesterov", "maximize"
NEGLIGIBLE = 1e-12  # a coefficient this small relative to another is rounding error
MIN_MOMENTUM_SCALE = 1e-3  # a momentum's scale factor below this is multiplied out


class DeferredRows:
    """Rows under SGD with momentum; updates of rows without a gradient are deferred.

    Rows are stored as they will be at their next turn if settings stay constant, momenta up to a
    scale factor. This saves most operations of a step.

    Attributes:
        stepped: Whether any step was taken.
        transitions: For each row the matrix from the stored to the current (s, v): (R, 2, 2).

    Args:
        values: The rows, (R, P). They are changed in place.
        momenta: Their momenta, (R, P), or None.
    """

    def __init__(self, values: Tensor, momenta: Tensor | None) -> None:
        self.values, self.momenta, self.stepped = values, momenta, False
        self.transitions = np.tile(np.eye(2), (len(values), 1, 1))
        self._largest_lookahead = 0.0  # in absolute value; the scale of rounding errors
        # Settings of the last step with the step matrix and lookahead that follow from them.
        self._cached: tuple[Any, np.ndarray, float] = None, np.eye(2, 3), 0.0

    def current(self, row: int) -> tuple[float, float]:
        """Return a and b such that the current row is a s + b v, with s and v as stored."""
        a, b = self.transitions[row][0]
        return float(a), float(b) if abs(b) > NEGLIGIBLE * self._largest_lookahead else 0.0

    def rotate_into(self, basis: Tensor, values: Tensor, momenta: Tensor | None) -> None:
        """Write basis @ current rows and momenta; this object must not be used afterwards."""
        transitions = torch.from_numpy(self.transitions).to(basis)
        if self.momenta is not None and momenta is not None:
            torch.mm(basis * transitions[:, 1, 1], self.momenta, out=momenta)
            if transitions[:, 1, 0].any():
                momenta.addmm_(basis * transitions[:, 1, 0], self.values)
        for row, s in enumerate(self.values):
            a, b = self.current(row)
            _combine(s, a, (None if self.momenta is None else self.momenta[row], b))
        torch.mm(basis, self.values, out=values)

    def step(self, group: Mapping[str, Any], gradients: Mapping[int, tuple[float, Tensor]]) -> None:
        """Take a step of SGD, as torch does with the settings of a parameter group.

        Args:
            group: The parameter group.
            gradients: Index of a row -> two factors whose product is the gradient.
        """
        self.stepped = True
        settings = *(float(group[n]) for n in SETTINGS), self.momenta is None, len(gradients)
        if settings != self._cached[0]:
            matrix = _step_matrix(group, first=self.momenta is None)
            waiting = max(0, len(self.values) // len(gradients) - 1)  # steps until the next turn
            lookahead = float(np.linalg.matrix_power(matrix[:, :2], waiting)[0, 1])
            self._largest_lookahead = max(self._largest_lookahead, abs(lookahead))
            self._cached = settings, matrix, lookahead
        _, matrix, lookahead = self._cached
        if self.momenta is None and group["momentum"]:
            self.momenta = torch.zeros_like(self.values)
        self.transitions = matrix[:, :2] @ self.transitions
        for row, (scale, gradient) in gradients.items():
            c, r = (scale * matrix[:, 2]).tolist()
            self._update(row, gradient, c, r, lookahead)

    def _update(self, row: int, g: Tensor, c: float, r: float, lookahead: float) -> None:
        """Update a row to s' + lookahead v', with s' = a s + b v + c g and v' = p s + q v + r g.

        If p is 0, v' / q = v + r / q g is stored in place of v', and the row is
        a s + (b + lookahead q) v' / q + (c - b r / q) g. At a row's turn, if settings have not
        changed, b is 0 before the step, and the last term is 0 without Nesterov momentum.
        """
        (a, b), (p, q) = self.transitions[row].tolist()
        s, v = self.values[row], None if self.momenta is None else self.momenta[row]
        # The last condition avoids cancellation in c - b r / q.
        if p == 0 and q > MIN_MOMENTUM_SCALE and abs(b * r) <= 2 * q * abs(c):
            self.transitions[row] = [[1.0, -lookahead * q], [0.0, q]]
            rest = c - b * r / q
            _combine(v, 1.0, (g, r / q))
            _combine(
                s, a, (v, b + lookahead * q), (g, rest if abs(rest) > NEGLIGIBLE * abs(c) else 0)
            )
        else:
            self.transitions[row] = [[1.0, -lookahead], [0.0, 1.0]]
            old = s.clone()
            _combine(s, a + lookahead * p, (v, b + lookahead * q), (g, c + lookahead * r))
            _combine(v, q, (old, p), (g, r))


def _step_matrix(group: Mapping[str, Any], first: bool) -> np.ndarray:
    """Return the new s and v as linear combinations of s, v and the gradient: (2, 3).

    Torch initializes the momentum with the gradient of the first step.
    """
    lr, momentum, weight_decay, dampening, nesterov, maximize = (float(group[n]) for n in SETTINGS)
    s, v, gradient = np.eye(3)
    gradient = (-gradient if maximize else gradient) + weight_decay * s
    direction = gradient
    if momentum:
        v = gradient if first else momentum * v + (1.0 - dampening) * gradient
        direction = gradient + momentum * v if nesterov else v
    return np.stack([s - lr * direction, v])


def _combine(tensor: Tensor | None, factor: float, *others: tuple[Tensor | None, float]) -> None:
    """Multiply a tensor in place and add multiples of others, skipping terms without effect."""
    if tensor is None:
        return
    if factor != 1.0:
        tensor.mul_(factor)
    for other, alpha in others:
        if alpha and other is not None:
            tensor.add_(other, alpha=alpha)
