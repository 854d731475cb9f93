"""Low-rank factors under SGD, in a basis in which a draw of the weights concerns one row only.

In w = mean + z S the rows of S may be turned: with Q orthogonal, z S = (z Q^T) (Q S), and SGD takes
the same steps in either basis. Let the rows of Q be directions drawn at random, and z = d q_i one
of them with a signed length d. If d^2 is chi-square distributed with R degrees of freedom, z is
standard normal. Then

    w = mean + d s_i,    s_i a row of Q S,

and the gradient of w, times d, is that of s_i; those of all other rows are zero. A step of SGD
moves this row. The others coast: by their momentum, v_j, row and momentum become a combination of
what they were, the same for many steps of many rows, which is kept as a 2 x 2 matrix until it is
their turn. So a step costs a few operations on one row, whatever the rank.

The directions take their turns, as examples do in shuffled data; lengths and signs are new each
time. After at least two turns of all, or when somebody looks, rows are turned back, and new
directions are drawn: two matrix products for S, two for its momentum. Only their share in a step
grows with the rank, to 4 R operations for each weight.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

MOMENTUM = "momentum_buffer"  # torch's name for it in the state of SGD
FEWEST_DRAWS = 32  # for which directions are kept
SETTINGS = "lr", "momentum", "weight_decay", "dampening", "nesterov", "maximize"
NEGLIGIBLE = 1e-12  # a coefficient relative to another: nothing but rounding
SHRUNK = 1e-3  # a factor of the momentum; below, it is multiplied out


class Directions:
    """Orthonormal directions of the noise of a layer, and the draws that are made along them.

    Args:
        rank: R, the number of directions.
        generator: Source of randomness.
    """

    def __init__(self, rank: int, generator: torch.Generator) -> None:
        gaussian = torch.randn(rank, rank, generator=generator, dtype=torch.float64)
        basis, triangle = torch.linalg.qr(gaussian)
        # With these signs uniformly distributed over all bases (Mezzadri, 2007).
        self.basis = basis * triangle.diagonal().sign()  # (R, R), a direction in each row
        self._generator = generator
        self._lengths: list[float] = []

    def length(self, draw: int) -> float:
        """Return the signed length of the noise of a draw."""
        rank = len(self.basis)
        while draw >= len(self._lengths):
            shape = max(FEWEST_DRAWS, rank), rank + 1
            z = torch.randn(shape, generator=self._generator, dtype=torch.float64)
            self._lengths += (z[:, 1:].norm(dim=1) * z[:, 0].sign()).tolist()
        return self._lengths[draw]

    def row(self, draw: int) -> int:
        """Return the direction whose turn it is."""
        return draw % len(self.basis)

    def noise(self, first: int, count: int, like: Tensor) -> Tensor:
        """Return the noise z of some draws, of shape (count, R)."""
        draws = range(first, first + count)
        noise = torch.stack([self.length(draw) * self.basis[self.row(draw)] for draw in draws])
        return noise.to(like)


@dataclass(frozen=True)
class Move:
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


class Course:
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

    def step(self, group: Mapping[str, Any], rows: Collection[int]) -> dict[int, Move]:
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

    def _move(self, row: int, gradient: np.ndarray, ahead: float) -> Move:
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
            return Move(a, b + ahead * q, rest, 0.0, 1.0, r / q, s_first=False)
        self.coasts[row] = [[1.0, -ahead], [0.0, 1.0]]
        return Move(a + ahead * p, b + ahead * q, c + ahead * r, p, q, r, s_first=True)

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


class TurnedFactor:
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
        course: Course,
        directions: Directions,
        before: TurnedFactor | None = None,
    ) -> None:
        self.parameter, self.state, self.course = parameter, state, course
        self.directions = directions
        self.accumulator: Any = torch.autograd.graph.get_gradient_edge(parameter).node
        self.received: dict[int, Tensor] = {}  # gradients: first draw -> (count, P)
        self.settled = False
        self.version = parameter._version
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
        if room is None or len(room) != count or _users(room) > 1:
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

    def move(self, moves: Mapping[int, Move]) -> None:
        """Take a step with the rows that have a gradient."""
        if self.course.momentum and self._momenta is None:
            self._momenta = torch.zeros_like(self._rows)
        for row, scale, gradient in self._gradients():
            v = None if self._momenta is None else self._momenta[row]
            _move(self._rows[row], v, gradient, scale, moves[row])

    def forget_gradient(self) -> None:
        """Drop the gradients."""
        self._gradient_room = {len(gradients): gradients for gradients in self.received.values()}
        self.received.clear()

    def show_gradient(self) -> None:
        """Move the gradients to `parameter.grad`, where torch has them."""
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
            _combine(s, a, (None if self._momenta is None else self._momenta[row], b))
        if self.parameter._version == self.version:
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
class Block:
    """The draws along the same directions.

    Args:
        layers: For each layer its factors, by the names of its tensors.
        size: After how many draws there should be new directions.
        used: How many of them are made.
    """

    layers: dict[str, dict[str, TurnedFactor]]
    size: int
    used: int = 0

    @cached_property
    def factors(self) -> list[TurnedFactor]:
        """All factors."""
        return [factor for layer in self.layers.values() for factor in layer.values()]

    def step(self, group: Mapping[str, Any], parameters: set[int]) -> None:
        """Take a step of SGD with the factors whose identities are among these."""
        moves: dict[Course, dict[int, Move]] = {}
        for factor in self.factors:
            if factor.received and id(factor.parameter) in parameters:
                if factor.course not in moves:
                    moves[factor.course] = factor.course.step(group, factor.touched())
                factor.move(moves[factor.course])

    @property
    def mixed(self) -> bool:
        """Whether factors have gradients by another way too, or some of a course have none."""
        received: dict[Course, set[int]] = {}
        return any(
            factor.parameter.grad is not None
            or received.setdefault(factor.course, set(factor.received)) != set(factor.received)
            for factor in self.factors
        )


def block_draws(rank: int) -> int:
    """Return for how many draws directions are kept: at least two turns of each."""
    return max(FEWEST_DRAWS, 2 * rank)


def pays(rank: int, count: int) -> bool:
    """Return whether a step of this many draws takes less time so."""
    return rank >= 2 * count


def _users(tensor: Tensor) -> int:
    """Return how many tensors share this one's memory, itself among them."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)) - 1


def _matrix(factor: Tensor) -> Tensor:
    """Return a view of a factor as a matrix (R, P)."""
    return factor.detach().view(len(factor), -1)


def _move(s: Tensor, v: Tensor | None, gradient: Tensor, scale: float, move: Move) -> None:
    """Take a step with a row and its momentum; its gradient is yet to be multiplied by `scale`."""
    old = s.clone() if move.v_s else s
    if v is not None and not move.s_first:
        v.add_(gradient, alpha=scale * move.v_g)
    _combine(s, move.s_s, (v, move.s_v), (gradient, scale * move.s_g))
    if v is not None and move.s_first:
        _combine(v, move.v_v, (old, move.v_s), (gradient, scale * move.v_g))


def _combine(tensor: Tensor, factor: float, *others: tuple[Tensor | None, float]) -> None:
    """Multiply a tensor and add multiples of others, without what changes nothing."""
    if factor != 1.0:
        tensor.mul_(factor)
    for other, alpha in others:
        if alpha and other is not None:
            tensor.add_(other, alpha=alpha)
