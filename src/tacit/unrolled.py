"""Low-rank factors under SGD that are touched once in many steps, not in every one.

In w = mean + S z the gradient of S is the outer product of z and g, the gradient of w. SGD is
linear, so after some steps the factor, and likewise its momentum V, is

    S_t = a S + b V + sum_j c_j z_j g_j^T

with S, V as they were at the beginning: a step of SGD changes the coefficients a, b, c only. What
the network needs is S_t z. With z drawn for many steps ahead, the rows of Z, that is

    S_t z_t = a A_t + b B_t + sum_j c_j (z_j . z_t) g_j,    A = Z S,  B = Z V,

two matrix products for all the steps, and a combination of a few gradients in each. S and V
themselves are brought up to date once in many steps, or when somebody looks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

MOMENTUM = "momentum_buffer"  # torch's name for it in the state of SGD
MOST_STEPS = 32


class UnrolledFactor:
    """A factor S of shape (R, *shape) since a block of steps began.

    Holds two rows of the size of the layer for each draw of the block, beside S and V.

    Args:
        parameter: S, and where it is kept.
        state: What the optimizer keeps for it: the momentum V.
        Z: The noise of the block, of shape (rows, R).
        gram: The products of its rows.
    """

    def __init__(
        self, parameter: Tensor, state: dict[str, Any], Z: Tensor, gram: np.ndarray
    ) -> None:
        self.parameter, self.state, self.Z, self.gram = parameter, state, Z, gram
        self.version = parameter._version
        momentum = state.get(MOMENTUM)
        # Row j of Z S; once there is a gradient, in `filled`, row j is g_j.
        self.rows = Z @ _matrix(parameter)
        self.momentum_rows = None if momentum is None else Z @ _matrix(momentum)
        self.filled: set[int] = set()  # first rows
        self.received: dict[int, int] = {}  # gradients of this step: first row -> how many
        # S_t and V_t are these combinations of S, V and the outer products.
        self.s = np.zeros(2 + len(Z))
        self.s[0] = 1.0
        self.v = None if momentum is None else np.roll(self.s, 1)
        self.settled = False

    def deviations(self, first: int, count: int) -> Tensor:
        """Return S_t z for some rows of Z, of shape (count, P)."""
        new = slice(first, first + count)
        if self.settled or first in self.filled:  # a pass that is made again
            own = self.Z[new] @ _matrix(self.parameter)
        else:
            own = self.rows[new]
        if self.settled:
            return own
        past = torch.from_numpy(self.s[2 : 2 + first] * self.gram[new, :first]).to(own)
        found = torch.addmm(own, past, self.rows[:first], beta=self.s[0])
        if self.momentum_rows is not None and self.s[1]:
            found.add_(self.momentum_rows[new], alpha=self.s[1])
        return found

    def receive(self, first: int, gradients: Tensor) -> None:
        """Take the gradients of sampled weights, of shape (count, *shape); they add up."""
        count = len(gradients)
        taken = self.s[2 + first] or (self.v is not None and self.v[2 + first])
        if self.settled or taken:  # a graph that is used again after its step
            self._add_gradient(slice(first, first + count), gradients.flatten(1))
            return
        place = self.rows[first : first + count].view_as(gradients)
        if first in self.received:
            place.add_(gradients)
        else:
            place.copy_(gradients)
        self.received[first] = count
        self.filled.add(first)

    def forget(self) -> None:
        """Drop the gradients of this step. They become 0: nothing times NaN would be NaN."""
        for first, count in self.received.items():
            self.rows[first : first + count] = 0.0
        self.received.clear()

    def scale(self, by: float) -> None:
        """Multiply the gradients of this step."""
        for first, count in self.received.items():
            self.rows[first : first + count].mul_(by)

    def squared_norm(self) -> float:
        """Return the squared norm of the gradient of this step, a sum of outer products."""
        index = [first + i for first, count in self.received.items() for i in range(count)]
        rows = self.rows[index]
        products = (rows @ rows.T).double().cpu().numpy()
        return float((products * self.gram[np.ix_(index, index)]).sum())

    def step(self, group: Mapping[str, Any]) -> None:
        """Take a step of SGD, as torch does with the settings of this parameter group."""
        if not self.received:
            return
        gradient = float(group["weight_decay"]) * self.s
        for first, count in self.received.items():
            gradient[2 + first : 2 + first + count] += -1.0 if group["maximize"] else 1.0
        direction, momentum = gradient, float(group["momentum"])
        if momentum:
            damped = (1.0 - float(group["dampening"])) * gradient
            self.v = gradient if self.v is None else momentum * self.v + damped
            direction = gradient + momentum * self.v if group["nesterov"] else self.v
        self.s = self.s - float(group["lr"]) * direction
        self.received.clear()

    def settle(self) -> None:
        """Bring S and V up to date; gradients that no step has taken go to `parameter.grad`."""
        if self.settled:
            return
        self.settled = True
        for first, count in self.received.items():
            used = slice(first, first + count)
            self._add_gradient(used, self.rows[used])
        self.received.clear()
        if self.s[2:].any() or (self.v is not None and self.v[2:].any()):
            self._write()
        self.rows, self.momentum_rows = self.rows.new_empty(0), None

    def _write(self) -> None:
        S, momentum = _matrix(self.parameter), self.state.get(MOMENTUM)
        if self.v is not None and momentum is None:
            momentum = self.state[MOMENTUM] = torch.zeros_like(self.parameter)
        V = None if momentum is None else _matrix(momentum)
        old = S.clone() if self.v is not None and self.v[0] else None
        S.addmm_(*self._past(self.s), beta=self.s[0])
        if V is not None and self.v is not None:
            if self.s[1]:
                S.add_(V, alpha=self.s[1])
            V.addmm_(*self._past(self.v), beta=self.v[1])
            if old is not None:
                V.add_(old, alpha=self.v[0])

    def _past(self, coefficients: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return two matrices whose product is the sum of the outer products."""
        (nonzero,) = coefficients[2:].nonzero()
        used = int(nonzero[-1]) + 1 if len(nonzero) else 0
        scaled = self.Z[:used].T * torch.from_numpy(coefficients[2 : 2 + used]).to(self.Z)
        return scaled, self.rows[:used]

    def _add_gradient(self, rows: slice, gradients: Tensor) -> None:
        S = self.parameter
        found = (self.Z[rows].T @ gradients).view_as(S)
        S.grad = found if S.grad is None else S.grad.add_(found)


@dataclass(eq=False)
class Block:
    """The steps from one time that factors are touched to the next.

    Args:
        layers: For each layer its factors, by the names of its tensors.
        size: For how many draws there is noise.
        used: How many of them are made.
    """

    layers: dict[str, dict[str, UnrolledFactor]]
    size: int
    used: int = 0

    @property
    def factors(self) -> list[UnrolledFactor]:
        """All factors."""
        return [factor for layer in self.layers.values() for factor in layer.values()]

    def settle(self) -> None:
        """Bring the factors up to date."""
        for factor in self.factors:
            factor.settle()


def block_steps(rank: int, count: int) -> int:
    """Return after how many steps to touch the factors.

    A step reads the gradients of the block so far, in numbers of a weight count * steps / 2, and
    has its share of what touching factor and momentum reads and writes, 7 * rank / steps.
    """
    return min(MOST_STEPS, max(2, round(math.sqrt(14 * rank / count))))


def pays(rank: int, count: int) -> bool:
    """Return whether a step of this many draws takes less time so."""
    return rank >= 4 * count


def _matrix(factor: Tensor) -> Tensor:
    """Return a view of a factor as a matrix (R, P)."""
    return factor.detach().view(len(factor), -1)
