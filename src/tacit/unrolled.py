"""Low-rank factors under SGD that are touched once in many steps, not in every one.

In w = mean + S z the gradient of S is the outer product of z and g, the gradient of w. SGD is
linear, so after some steps the factor, and likewise its momentum V, is

    S_t = a S + b V + sum_j c_j z_j g_j^T

with S, V as they were at the beginning: a step of SGD changes the coefficients a, b, c only. What
the network needs is S_t z. With z drawn for many steps ahead, the rows of Z, that is

    S_t z_t = a A_t + b B_t + sum_j c_j (z_j . z_t) g_j,    A = Z S,  B = Z V,

two matrix products for all the steps, and a combination of a few gradients in each. S and V
themselves are brought up to date once in many steps, or when somebody looks: piece by piece, and
while a piece is at hand it is multiplied by the noise of the steps that follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

MOMENTUM = "momentum_buffer"  # torch's name for it in the state of SGD
MOST_STEPS = 32
PIECE = 2**14  # columns of a factor that a CPU works on at a time


class Course:
    """What SGD has done to a factor since a block of steps began, in coefficients.

    The tensors of a layer that are in one parameter group have it in common.

    Args:
        Z: The noise of the block, of shape (rows, R).
        gram: The products of its rows.
        momentum: Whether there is a momentum V.
    """

    def __init__(self, Z: Tensor, gram: np.ndarray, momentum: bool) -> None:
        self.Z, self.gram = Z, gram
        # S_t and V_t are these combinations of S, V and the outer products.
        self.s = np.zeros(2 + len(Z))
        self.s[0] = 1.0
        self.v = np.roll(self.s, 1) if momentum else None
        self.stepped = False

    def step(self, group: Mapping[str, Any], received: Mapping[int, int]) -> None:
        """Take a step of SGD, as torch does with the settings of this parameter group.

        Args:
            group: The parameter group.
            received: What there are gradients for: first row -> number of rows.
        """
        gradient = float(group["weight_decay"]) * self.s
        for first, count in received.items():
            gradient[2 + first : 2 + first + count] += -1.0 if group["maximize"] else 1.0
        direction, momentum = gradient, float(group["momentum"])
        if momentum:
            if self.v is None:
                self.v = gradient.copy()
            else:
                self.v = momentum * self.v + (1.0 - float(group["dampening"])) * gradient
            direction = gradient + momentum * self.v if group["nesterov"] else self.v
        self.s = self.s - float(group["lr"]) * direction
        self.stepped = True

    def took(self, row: int) -> bool:
        """Return whether a step has taken the gradient of this row."""
        return bool(self.s[2 + row] or (self.v is not None and self.v[2 + row]))

    def deviation(self, first: int, count: int) -> Tensor:
        """Return coefficients of A_t and the gradients before: for some rows all rows up to them.

        No step has taken the rows in question: their coefficients in `s` are zero.
        """
        rows, used = slice(first, first + count), first + count
        coefficients = self.s[2 : 2 + used] * self.gram[rows, :used]
        np.fill_diagonal(coefficients[:, first:], self.s[0])
        return torch.from_numpy(coefficients).to(self.Z)

    def change(self, coefficients: np.ndarray) -> Tensor:
        """Return what the gradients are multiplied by: noise of shape (R, used), scaled."""
        (nonzero,) = coefficients[2:].nonzero()
        used = int(nonzero[-1]) + 1 if len(nonzero) else 0
        return self.Z[:used].T * torch.from_numpy(coefficients[2 : 2 + used]).to(self.Z)


class UnrolledFactor:
    """A factor S of shape (R, *shape) since a block of steps began.

    Holds two rows of the size of the layer for each draw of the block, beside S and V.

    Args:
        parameter: S, and where it is kept.
        state: What the optimizer keeps for it: the momentum V.
        course: The coefficients.
        before: The factor in the block that ends with this one; it is settled.
    """

    def __init__(
        self,
        parameter: Tensor,
        state: dict[str, Any],
        course: Course,
        before: UnrolledFactor | None = None,
    ) -> None:
        self.parameter, self.state, self.course = parameter, state, course
        self.accumulator: Any = torch.autograd.graph.get_gradient_edge(parameter).node
        # Row j of Z S; once there is a gradient, in `filled`, row j is g_j. And the rows of Z V.
        self.rows: Tensor = self._room(None if before is None else before.rows)
        self.momentum_rows: Tensor | None = None
        if course.v is not None:
            self.momentum_rows = self._room(None if before is None else before.momentum_rows)
        self.filled: set[int] = set()  # first rows
        self.received: dict[int, int] = {}  # gradients of this step: first row -> how many
        self.settled = False
        if before is not None and not before.settled:
            before.settle(self)
        else:
            for piece in self._pieces():
                self._begin(piece)
        self.version = parameter._version

    def weights(self, mean: Tensor, first: int, count: int, deviation: Tensor) -> Tensor:
        """Return mean + S_t z for some rows of Z, of shape (count, P).

        Args:
            mean: The mean.
            first: The first row.
            count: The number of rows.
            deviation: The coefficients for it.
        """
        new, rows = slice(first, first + count), self.rows
        found = mean.reshape(1, -1)
        if self.settled:
            return found + self.course.Z[new] @ self._factor
        if first in self.filled:  # a pass that is made again
            rows = torch.cat([rows[:first], self.course.Z[new] @ self._factor])
        if self.momentum_rows is None:
            return torch.addmm(found, deviation, rows[: first + count])
        found = torch.add(found, self.momentum_rows[new], alpha=self.course.s[1])
        return found.addmm_(deviation, rows[: first + count])

    def receive(self, first: int, gradients: Tensor) -> None:
        """Take the gradients of sampled weights, of shape (count, P); they add up."""
        rows = slice(first, first + len(gradients))
        if self.settled or self.course.took(first):  # a graph that is used again after its step
            self._add_gradient(rows, gradients)
        elif first in self.received:
            self.rows[rows].add_(gradients)
        else:
            self.rows[rows].copy_(gradients)
            self.received[first] = len(gradients)
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
        return float((products * self.course.gram[np.ix_(index, index)]).sum())

    def settle(self, following: UnrolledFactor | None = None) -> None:
        """Bring S and V up to date; gradients that no step has taken go to `parameter.grad`.

        Args:
            following: The same factor in the next block.
        """
        if self.settled:
            return
        course = self.course
        if course.v is not None and self.state.get(MOMENTUM) is None:
            self.state[MOMENTUM] = torch.zeros_like(self.parameter)
        change = course.change(course.s)
        momentum_change = None if course.v is None else course.change(course.v)
        for first, count in self.received.items():
            used = slice(first, first + count)
            self._add_gradient(used, self.rows[used])
        self.received.clear()
        self.settled = True
        for piece in self._pieces():
            if course.stepped:
                self._write(piece, change, momentum_change)
            if following is not None:
                following._begin(piece)
        self.rows, self.momentum_rows = self.rows.new_empty(0), None

    def _begin(self, piece: slice) -> None:
        """Multiply a piece of S and V by the noise."""
        torch.mm(self.course.Z, self._factor[:, piece], out=self.rows[:, piece])
        if self.momentum_rows is not None:
            torch.mm(self.course.Z, self._momentum[:, piece], out=self.momentum_rows[:, piece])

    def _write(self, piece: slice, change: Tensor, momentum_change: Tensor | None) -> None:
        """Bring a piece of S and V up to date."""
        course, s = self.course, self._factor[:, piece]
        a, b = course.s[:2]
        if course.v is None or momentum_change is None:
            s.addmm_(change, self.rows[: change.shape[1], piece], beta=a)
            return
        v, (c, d) = self._momentum[:, piece], course.v[:2]
        old = s.clone() if c else s
        s.addmm_(change, self.rows[: change.shape[1], piece], beta=a)
        if b:
            s.add_(v, alpha=b)
        v.addmm_(momentum_change, self.rows[: momentum_change.shape[1], piece], beta=d)
        if c:
            v.add_(old, alpha=c)

    def _pieces(self) -> list[slice]:
        size = self._factor.shape[1]
        width = PIECE if self.parameter.device.type == "cpu" else size
        return [slice(start, start + width) for start in range(0, size, width)]

    @property
    def _factor(self) -> Tensor:
        return _matrix(self.parameter)

    @property
    def _momentum(self) -> Tensor:
        return _matrix(self.state[MOMENTUM])

    def _room(self, given: Tensor | None) -> Tensor:
        """Return a matrix for a row of each draw: a given one if it has the size.

        New memory would have to be mapped, which takes longer than to write to it.
        """
        shape = len(self.course.Z), self._factor.shape[1]
        if given is not None and given.shape == shape:
            return given
        return self._factor.new_empty(shape)

    def _add_gradient(self, rows: slice, gradients: Tensor) -> None:
        S = self.parameter
        found = (self.course.Z[rows].T @ gradients).view_as(S)
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

    @cached_property
    def factors(self) -> list[UnrolledFactor]:
        """All factors."""
        return [factor for layer in self.layers.values() for factor in layer.values()]

    def step(self, group: Mapping[str, Any], parameters: set[int]) -> None:
        """Take a step of SGD with the factors whose identities are among these."""
        stepped = set()
        for factor in self.factors:
            if factor.received and id(factor.parameter) in parameters:
                if id(factor.course) not in stepped:
                    factor.course.step(group, factor.received)
                stepped.add(id(factor.course))
                factor.received.clear()

    @property
    def mixed(self) -> bool:
        """Whether factors have gradients by another way too, or some of a course have none."""
        received: dict[int, set[int]] = {}
        return any(
            factor.parameter.grad is not None
            or received.setdefault(id(factor.course), set(factor.received)) != set(factor.received)
            for factor in self.factors
        )

    def settle(self) -> None:
        """Bring the factors up to date."""
        for factor in self.factors:
            factor.settle()


def block_steps(rank: float, count: int) -> int:
    """Return after how many steps to touch factors of this rank on average.

    A step reads the gradients of the block so far, in numbers of a weight count * steps / 2, and
    has its share of what touching factor and momentum takes, (20 + 8 * rank) / steps (measured).
    """
    return min(MOST_STEPS, max(2, round(math.sqrt((40 + 16 * rank) / count))))


def pays(rank: int, count: int) -> bool:
    """Return whether a step of this many draws takes less time so."""
    return rank >= 4 * count


def _matrix(factor: Tensor) -> Tensor:
    """Return a view of a factor as a matrix (R, P)."""
    return factor.detach().view(len(factor), -1)
