"""Low-rank factors under SGD in a basis in which each draw of the weights involves a single row.

In w = mean + z S the rows of S may be rotated: with Q orthogonal, z S = (z Q^T) (Q S), and SGD
takes the same steps in either basis. Let the rows q_i of Q be random directions, and z = d q_i one
of them with a signed length d. If d^2 is chi-square distributed with R degrees of freedom, z is
standard normal. Then

    w = mean + d s_i,    s_i a row of Q S,

and the gradient with respect to s_i is d times that with respect to w; the gradients of all other
rows are zero. A step of SGD updates this row. The effect of momentum and weight decay on the others
is known in closed form, and their updates are deferred until their next turn (see
`tacit.training.optim.momentum`). So a step costs a few operations on one row, whatever the rank.
Elsewhere S is written by its columns, w = mean + S z; it is stored with the rank as its first
dimension.

Directions take turns, as examples do in shuffled data; lengths and signs are new each time. After
at least two turns of each, or on access to the factors, rows are rotated back and new directions
are drawn: two matrix products for S, two for its momentum. Only their share of a step grows with
the rank, to 4 R operations per weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support.private_torch import memory_users, without_torch_function
from tacit.training.optim.momentum import RowMomentum, RowUpdate, combine
from tacit.training.optim.noise_basis import NoiseBasis
from tacit.training.optim.unsettled import UnsettledParameter

MOMENTUM = "momentum_buffer"  # torch's name for it in the state of SGD


class RotatedFactor:
    """A factor S of shape (R, *shape) in a noise basis, until it is settled.

    Takes as much memory again as S and its momentum.

    Attributes:
        accumulator: The node of the graph that accumulates the gradient of S.
        weight_gradients: Gradients of sampled weights: index of first draw -> (count, P).
        settled: Whether all updates have been applied to S.
        values: S as a plain tensor.

    Args:
        parameter: S. Until it is settled it keeps its initial value and can't be used.
        state: The optimizer's state of S, with the momentum V.
        row_momentum: The closed form of deferred updates.
        noise_basis: The basis.
        previous: The settled factor of the previous block, whose buffers are reused.
    """

    def __init__(
        self,
        parameter: nn.Parameter,
        state: dict[str, Any],
        row_momentum: RowMomentum,
        noise_basis: NoiseBasis,
        previous: RotatedFactor | None = None,
    ) -> None:
        self.parameter, self.state, self.row_momentum = parameter, state, row_momentum
        self.noise_basis = noise_basis
        self.accumulator: Any = torch.autograd.graph.get_gradient_edge(parameter).node
        self.weight_gradients: dict[int, Tensor] = {}
        self.settled = False
        self.values = parameter.detach()
        self._basis = noise_basis.basis.to(parameter)
        # Buffers are reused: new memory has to be mapped, which takes longer than writing to it.
        self._matrix_buffers: list[Tensor] = []
        self._weight_buffer: Tensor | None = None
        self._gradient_buffers: dict[int, Tensor] = {}  # number of draws -> buffer
        if previous is not None:
            self._matrix_buffers = previous._matrix_buffers
            self._weight_buffer = previous._weight_buffer
            self._gradient_buffers = previous._gradient_buffers
            previous.release_buffers()
        self._rows = self._rotate(self.values)
        self._momenta: Tensor | None = None
        if row_momentum.has_momentum:
            self._momenta = self._rotate(state[MOMENTUM])
        parameter.__class__ = UnsettledParameter

    @property
    def nbytes(self) -> int:
        """Bytes of the rotated factor, its momentum, gradients and buffers."""
        tensors = [self._rows, self._momenta, self._weight_buffer, *self._matrix_buffers]
        tensors += [*self._gradient_buffers.values(), *self.weight_gradients.values()]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def weights(self, mean: Tensor, first: int, count: int) -> Tensor:
        """Return mean + z S for consecutive draws, of shape (count, P).

        Args:
            mean: The mean, of any shape with P elements.
            first: Index of the first draw.
            count: Number of draws.
        """
        mean = mean.reshape(-1)
        if self.settled:
            noise = self.noise_basis.noise(first, count, mean)
            return mean + noise @ _matrix(self.values)
        weights = self._take_weight_buffer(count)
        for draw, out in enumerate(weights, first):
            row, length = self.noise_basis.row(draw), self.noise_basis.length(draw)
            a, b = self.row_momentum.current(row)
            torch.add(mean, self._rows[row], alpha=length * a, out=out)
            if b and self._momenta is not None:
                out.add_(self._momenta[row], alpha=length * b)
        return weights

    def _take_weight_buffer(self, count: int) -> Tensor:
        """Return memory for weights, of shape (count, P): that of the last step, if unused.

        New memory has to be mapped, which takes three times as long as filling it.
        """
        buffer = self._weight_buffer
        if buffer is None or len(buffer) != count or memory_users(buffer) > 1:
            buffer = self._weight_buffer = self._rows.new_empty(count, self._rows.shape[1])
        return buffer.detach()

    def accumulate(self, first: int, gradients: Tensor) -> None:
        """Add gradients of sampled weights.

        Args:
            first: Index of the first draw.
            gradients: Gradients with respect to the weights of consecutive draws, (count, P).
        """
        if self.settled:  # the forward pass was before settling
            self._add_to_gradient(first, gradients)
        elif first in self.weight_gradients:
            self.weight_gradients[first].add_(gradients)
        else:
            buffer = self._gradient_buffers.pop(len(gradients), None)
            buffer = torch.empty_like(gradients) if buffer is None else buffer
            self.weight_gradients[first] = buffer.copy_(gradients)

    def scale_gradients(self, by: float) -> None:
        """Multiply the gradients."""
        for gradients in self.weight_gradients.values():
            gradients.mul_(by)

    def squared_norm(self) -> float:
        """Return the squared norm of the gradient."""
        return float(sum(scale**2 * g.dot(g).double() for _, scale, g in self._gradients()))

    def rows_with_gradient(self) -> set[int]:
        """Return the indices of the rows that have a gradient."""
        return {
            self.noise_basis.row(first + i)
            for first, gradients in self.weight_gradients.items()
            for i in range(gradients.shape[0])
        }

    def update(self, updates: Mapping[int, RowUpdate]) -> None:
        """Take a step with the rows that have a gradient: index -> update."""
        if self.row_momentum.has_momentum and self._momenta is None:
            self._momenta = torch.zeros_like(self._rows)
        for row, scale, gradient in self._gradients():
            v = None if self._momenta is None else self._momenta[row]
            updates[row].apply(self._rows[row], v, gradient, scale)

    def forget_gradients(self) -> None:
        """Drop the gradients."""
        self._gradient_buffers = {len(kept): kept for kept in self.weight_gradients.values()}
        self.weight_gradients.clear()

    def form_gradient(self) -> None:
        """Add the gradients of the draws to `parameter.grad`, as torch does."""
        for first, gradients in self.weight_gradients.items():
            self._add_to_gradient(first, gradients)
        self.weight_gradients.clear()

    def release_buffers(self) -> None:
        """Free the memory kept for the next block."""
        self._matrix_buffers, self._weight_buffer, self._gradient_buffers = [], None, {}

    def settle(self) -> None:
        """Apply all deferred updates to S and V."""
        if self.settled:
            return
        self.settled = True
        self.parameter.__class__ = nn.Parameter
        if self.row_momentum.stepped:
            self._rotate_back()
        self._matrix_buffers = [part for part in (self._rows, self._momenta) if part is not None]
        self._rows, self._momenta = self._rows.new_empty(0), None

    def _rotate_back(self) -> None:
        basis = self._basis.T
        transitions = torch.from_numpy(self.row_momentum.transitions).to(self._basis)
        if self._momenta is not None:
            if self.state.get(MOMENTUM) is None:
                self.state[MOMENTUM] = torch.empty_like(self.values)
            momentum = _matrix(self.state[MOMENTUM])
            torch.mm(basis * transitions[:, 1, 1], self._momenta, out=momentum)
            if transitions[:, 1, 0].any():
                momentum.addmm_(basis * transitions[:, 1, 0], self._rows)
        for row, s in enumerate(self._rows):
            a, b = self.row_momentum.current(row)
            combine(s, a, (None if self._momenta is None else self._momenta[row], b))
        torch.mm(basis, self._rows, out=_matrix(self.values))

    def _gradients(self) -> Iterator[tuple[int, float, Tensor]]:
        """Yield the index of each row with a gradient, a scale, and the gradient up to that."""
        found: dict[int, list[tuple[float, Tensor]]] = {}
        for first, gradients in self.weight_gradients.items():
            for draw, gradient in enumerate(gradients, first):
                of_row = found.setdefault(self.noise_basis.row(draw), [])
                of_row.append((self.noise_basis.length(draw), gradient))
        for row, ((length, gradient), *others) in found.items():
            if not others:
                yield row, length, gradient
            else:
                total = length * gradient
                for length, gradient in others:
                    total.add_(gradient, alpha=length)
                yield row, 1.0, total

    def _rotate(self, tensor: Tensor) -> Tensor:
        buffers = self._matrix_buffers
        buffer = buffers.pop() if buffers else torch.empty_like(_matrix(tensor))
        return torch.mm(self._basis, _matrix(tensor), out=buffer)

    def _add_to_gradient(self, first: int, gradients: Tensor) -> None:
        noise = self.noise_basis.noise(first, len(gradients), gradients)
        added = (noise.T @ gradients).view_as(self.values)
        with without_torch_function():  # the parameter may be in a later block
            known = self.parameter.grad
            self.parameter.grad = added if known is None else known.add_(added)


@dataclass(eq=False)
class NoiseBlock:
    """The draws along the same noise bases.

    Args:
        layers: The rotated factors of each layer, by the names of its tensors.
        size: Number of draws after which new bases should be drawn.
        used: Number of draws made so far.
    """

    layers: dict[str, dict[str, RotatedFactor]]
    size: int
    used: int = 0

    @cached_property
    def factors(self) -> list[RotatedFactor]:
        """The rotated factors of all layers."""
        return [factor for layer in self.layers.values() for factor in layer.values()]

    def step(self, group: Mapping[str, Any], parameters: set[int]) -> None:
        """Take a step of SGD.

        Args:
            group: Settings of the step.
            parameters: Identities of the parameters to update.
        """
        updates: dict[RowMomentum, dict[int, RowUpdate]] = {}
        for factor in self.factors:
            if factor.weight_gradients and id(factor.parameter) in parameters:
                shared = factor.row_momentum
                if shared not in updates:
                    updates[shared] = shared.step(group, factor.rows_with_gradient())
                factor.update(updates[shared])

    @property
    def mixed(self) -> bool:
        """Whether some gradients bypass the basis, or factors that share a momentum differ.

        Factors differ if they have gradients of different draws.
        """
        draws: dict[RowMomentum, set[int]] = {}
        with without_torch_function():
            return any(
                factor.parameter.grad is not None
                or draws.setdefault(factor.row_momentum, set(factor.weight_gradients))
                != set(factor.weight_gradients)
                for factor in self.factors
            )


def _matrix(factor: Tensor) -> Tensor:
    """Return a view of a factor as a matrix, (R, P)."""
    return factor.detach().view(len(factor), -1)
