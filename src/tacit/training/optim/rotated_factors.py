"""Low-rank factors under SGD, in a basis in which a draw of the weights concerns one row only.

In w = mean + z S the rows of S may be turned: with Q orthogonal, z S = (z Q^T) (Q S), and SGD takes
the same steps in either basis. Let the rows of Q be directions drawn at random, and z = d q_i one
of them with a signed length d. If d^2 is chi-square distributed with R degrees of freedom, z is
standard normal. Then

    w = mean + d s_i,    s_i a row of Q S,

and the gradient of w, times d, is that of s_i; those of all other rows are zero. A step of SGD
moves this row; the others coast, and are not touched until it is their turn (see
`tacit.coasting`). So a step costs a few operations on one row, whatever the rank. Elsewhere S is
written with its columns, w = mean + S z; it is stored rank first.

The directions take their turns, as examples do in shuffled data; lengths and signs are new each
time. After at least two turns of all, or when somebody looks, rows are turned back, and new
directions are drawn: two matrix products for S, two for its momentum. Only their share in a step
grows with the rank, to 4 R operations for each weight.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tacit._support.private_torch import memory_users, version
from tacit.training.optim.momentum import RowMomentum, RowUpdate, combine
from tacit.training.optim.noise_basis import NoiseBasis

MOMENTUM = "momentum_buffer"  # torch's name for it in the state of SGD


class RotatedFactor:
    """A factor S of shape (R, *shape) in the basis of some directions, until it is settled.

    Takes as much memory again as S and its momentum.

    Args:
        parameter: S, and where it is kept. Until it is settled, as it was at the beginning.
        state: What the optimizer keeps for it: the momentum V.
        course: What SGD has done to rows that are not touched.
        directions: The directions.
        before: The factor in the block before, settled; its memory is taken over.
    """

    def __init__(
        self,
        parameter: Tensor,
        state: dict[str, Any],
        course: RowMomentum,
        directions: NoiseBasis,
        before: RotatedFactor | None = None,
    ) -> None:
        self.parameter, self.state, self.course = parameter, state, course
        self.directions = directions
        self.accumulator: Any = torch.autograd.graph.get_gradient_edge(parameter).node
        self.received: dict[int, Tensor] = {}  # gradients: first draw -> (count, P)
        self.settled = False
        self.version = version(parameter)
        self._basis = directions.basis.to(parameter)
        # New memory would have to be mapped, which takes longer than to write to it.
        self._room: list[Tensor] = []
        self._weight_room: Tensor | None = None
        self._gradient_room: dict[int, Tensor] = {}  # number of draws -> memory
        if before is not None:
            self._room, self._weight_room = before._room, before._weight_room
            self._gradient_room = before._gradient_room
            before.free()
        self._rows = self._turned(parameter)
        self._momenta: Tensor | None = None
        if course.momentum:
            self._momenta = self._turned(state[MOMENTUM])

    def weights(self, mean: Tensor, first: int, count: int) -> Tensor:
        """Return mean + z S for some draws, of shape (count, P)."""
        mean = mean.reshape(-1)
        if self.settled:
            noise = self.directions.noise(first, count, mean)
            return mean + noise @ _matrix(self.parameter)
        weights = self._free_room(count)
        for draw, out in enumerate(weights, first):
            row, length = self.directions.row(draw), self.directions.length(draw)
            a, b = self.course.present(row)
            torch.add(mean, self._rows[row], alpha=length * a, out=out)
            if b and self._momenta is not None:
                out.add_(self._momenta[row], alpha=length * b)
        return weights

    def _free_room(self, count: int) -> Tensor:
        """Return memory for weights, of shape (count, P): that of the step before, if it is free.

        New memory has to be mapped, which takes three times as long as to fill it.
        """
        room = self._weight_room
        if room is None or len(room) != count or memory_users(room) > 1:
            room = self._weight_room = self._rows.new_empty(count, self._rows.shape[1])
        return room.detach()

    def receive(self, first: int, gradients: Tensor) -> None:
        """Take the gradients of sampled weights, of shape (count, P); they add up."""
        if self.settled:  # a graph that is older than that
            self._show(first, gradients)
        elif first in self.received:
            self.received[first].add_(gradients)
        else:
            room = self._gradient_room.pop(len(gradients), None)
            room = torch.empty_like(gradients) if room is None else room
            self.received[first] = room.copy_(gradients)

    def scale(self, by: float) -> None:
        """Multiply the gradients."""
        for gradients in self.received.values():
            gradients.mul_(by)

    def squared_norm(self) -> float:
        """Return the squared norm of the gradient."""
        return float(sum(scale**2 * g.dot(g).double() for _, scale, g in self._gradients()))

    def touched(self) -> set[int]:
        """Return the rows that have a gradient."""
        return {
            self.directions.row(first + i)
            for first, gradients in self.received.items()
            for i in range(gradients.shape[0])
        }

    def move(self, moves: Mapping[int, RowUpdate]) -> None:
        """Take a step with the rows that have a gradient."""
        if self.course.momentum and self._momenta is None:
            self._momenta = torch.zeros_like(self._rows)
        for row, scale, gradient in self._gradients():
            v = None if self._momenta is None else self._momenta[row]
            moves[row].make(self._rows[row], v, gradient, scale)

    def forget_gradient(self) -> None:
        """Drop the gradients."""
        self._gradient_room = {len(gradients): gradients for gradients in self.received.values()}
        self.received.clear()

    def show_gradient(self) -> None:
        """RowUpdate the gradients to `parameter.grad`, where torch has them."""
        for first, gradients in self.received.items():
            self._show(first, gradients)
        self.received.clear()

    def free(self) -> None:
        """Give memory back that a next block could have used."""
        self._room, self._weight_room, self._gradient_room = [], None, {}

    def settle(self) -> None:
        """Bring S and V up to date."""
        if self.settled:
            return
        self.settled = True
        if self.course.stepped:
            self._turn_back()
        self._room = [part for part in (self._rows, self._momenta) if part is not None]
        self._rows, self._momenta = self._rows.new_empty(0), None

    def _turn_back(self) -> None:
        basis, coasts = self._basis.T, torch.from_numpy(self.course.coasts).to(self._basis)
        if self._momenta is not None:
            if self.state.get(MOMENTUM) is None:
                self.state[MOMENTUM] = torch.empty_like(self.parameter)
            momentum = _matrix(self.state[MOMENTUM])
            torch.mm(basis * coasts[:, 1, 1], self._momenta, out=momentum)
            if coasts[:, 1, 0].any():
                momentum.addmm_(basis * coasts[:, 1, 0], self._rows)
        for row, s in enumerate(self._rows):
            a, b = self.course.present(row)
            combine(s, a, (None if self._momenta is None else self._momenta[row], b))
        if version(self.parameter) == self.version:
            torch.mm(basis, self._rows, out=_matrix(self.parameter))
        else:
            warnings.warn(
                "tacit.SGD: a factor was changed through a reference from before, when it was not "
                "up to date. It is now what it was changed to, without the steps since. Call "
                "model.settle() first.",
                stacklevel=2,
            )

    def _gradients(self) -> Iterator[tuple[int, float, Tensor]]:
        """Yield each row that has a gradient, with one that has to be multiplied by a number."""
        found: dict[int, list[tuple[float, Tensor]]] = {}
        for first, gradients in self.received.items():
            for draw, gradient in enumerate(gradients, first):
                place = found.setdefault(self.directions.row(draw), [])
                place.append((self.directions.length(draw), gradient))
        for row, ((length, gradient), *others) in found.items():
            if not others:
                yield row, length, gradient
            else:
                total = length * gradient
                for length, gradient in others:
                    total.add_(gradient, alpha=length)
                yield row, 1.0, total

    def _turned(self, tensor: Tensor) -> Tensor:
        room = self._room.pop() if self._room else torch.empty_like(_matrix(tensor))
        return torch.mm(self._basis, _matrix(tensor), out=room)

    def _show(self, first: int, gradients: Tensor) -> None:
        noise = self.directions.noise(first, len(gradients), gradients)
        found, known = (noise.T @ gradients).view_as(self.parameter), self.parameter.grad
        self.parameter.grad = found if known is None else known.add_(found)


@dataclass(eq=False)
class NoiseBlock:
    """The draws along the same directions.

    Args:
        layers: For each layer its factors, by the names of its tensors.
        size: After how many draws there should be new directions.
        used: How many of them are made.
    """

    layers: dict[str, dict[str, RotatedFactor]]
    size: int
    used: int = 0

    @cached_property
    def factors(self) -> list[RotatedFactor]:
        """All factors."""
        return [factor for layer in self.layers.values() for factor in layer.values()]

    def step(self, group: Mapping[str, Any], parameters: set[int]) -> None:
        """Take a step of SGD with the factors whose identities are among these."""
        moves: dict[RowMomentum, dict[int, RowUpdate]] = {}
        for factor in self.factors:
            if factor.received and id(factor.parameter) in parameters:
                if factor.course not in moves:
                    moves[factor.course] = factor.course.step(group, factor.touched())
                factor.move(moves[factor.course])

    @property
    def mixed(self) -> bool:
        """Whether factors have gradients by another way too, or some of a course have none."""
        received: dict[RowMomentum, set[int]] = {}
        return any(
            factor.parameter.grad is not None
            or received.setdefault(factor.course, set(factor.received)) != set(factor.received)
            for factor in self.factors
        )


def _matrix(factor: Tensor) -> Tensor:
    """Return a view of a factor as a matrix (R, P)."""
    return factor.detach().view(len(factor), -1)
