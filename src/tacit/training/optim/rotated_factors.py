"""Low-rank factors under SGD in a basis in which each draw of the weights involves a single row.

In w = mean + z S the rows of S may be rotated: with Q orthogonal, z S = (z Q^T) (Q S), and SGD
takes the same steps in either basis. Let the rows q_i of Q be random directions, and z = d q_i one
of them with a signed length d. If d^2 is chi-square distributed with R degrees of freedom, z is
standard normal. Then

    w = mean + d s_i,    s_i a row of Q S,

and the gradient with respect to s_i is d times that with respect to w; the gradients of all other
rows are zero. A step of SGD updates this row. The effect of momentum and weight decay on the others
is known in closed form, and their updates are deferred until their next turn (see
`tacit.training.optim.momentum`). A step thus costs a few operations on one row, at any rank.
Elsewhere S is written by its columns, w = mean + S z; it is stored with the rank as its first
dimension.

Directions take turns, as examples do in shuffled data; lengths and signs are new each time. After
at least two turns of each, or on access to the factors, rows are rotated back and new directions
are drawn: two matrix products for S, two for its momentum. Only their share of a step grows with
the rank, to 4 R operations per weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tacit._support.private_torch import accumulates_gradient, without_torch_function
from tacit.training.optim.momentum import DeferredRows
from tacit.training.optim.noise_basis import NoiseBasis
from tacit.weights.distribution import laid_out, own_precision

MOMENTUM = "momentum_buffer"  # torch's name for it in the state of SGD


class UnsettledParameter(nn.Parameter):
    """The class of a factor while its updates are deferred: every use raises an error.

    A list of parameters kept from earlier is thus never silently stale.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(
            "tacit.SGD(deferred=True) has not applied all updates to this factor. Get it from "
            "model.parameters() again, or call model.settle() first. Drop gradients with "
            "optimizer.zero_grad() and clip with optimizer.clip_grad_norm(). For other optimizers "
            "call model.defer_to(None), or omit deferred=True."
        )


class RotatedFactor:
    """A factor S of shape (R, *shape) in a noise basis, until it is settled.

    Takes as much memory again as S and its momentum.

    Attributes:
        accumulator: The node of the graph that accumulates the gradient of S.
        gradients: Gradients of sampled weights: index of the draw -> (P,).
        settled: Whether all updates have been applied to S.

    Args:
        parameter: S. Until it is settled it keeps its initial value and can't be used.
        state: The optimizer's state of S, from which the momentum is taken until then.
        basis: The basis.
    """

    def __init__(self, parameter: nn.Parameter, state: dict[str, Any], basis: NoiseBasis) -> None:
        self.parameter, self.state, self.basis = parameter, state, basis
        self.accumulator: Any = torch.autograd.graph.get_gradient_edge(parameter).node
        self.gradients: dict[int, Tensor] = {}
        self.settled, self.device, self._shape = False, parameter.device.type, parameter.shape
        self._matrix = parameter.detach().view(len(parameter), -1)  # (R, P)
        self._momentum: Tensor | None = state.get(MOMENTUM)
        turn = basis.basis.to(parameter)
        momenta = None if self._momentum is None else turn @ self._momentum.view_as(self._matrix)
        self._rows = DeferredRows(turn @ self._matrix, momenta)
        state.pop(MOMENTUM, None)
        parameter.__class__ = UnsettledParameter

    def weights(self, mean: Tensor, first: int, count: int) -> Tensor:
        """Return mean + z S for `count` consecutive draws, of shape (count, P)."""
        mean, rows = mean.reshape(-1), self._rows
        weights = mean.new_empty(count, len(mean))
        for draw, out in enumerate(weights, first):
            row, length = self.basis.row(draw), self.basis.length(draw)
            a, b = rows.current(row)
            torch.add(mean, rows.values[row], alpha=length * a, out=out)
            if b and rows.momenta is not None:
                out.add_(rows.momenta[row], alpha=length * b)
        return weights

    def accumulate(self, first: int, gradients: Tensor) -> None:
        """Add gradients with respect to the weights of consecutive draws, (count, P)."""
        for draw, gradient in enumerate(gradients.clone(), first):
            known = self.gradients.get(draw)
            self.gradients[draw] = gradient if known is None else known.add_(gradient)
        if self.settled:  # the forward pass was before settling
            self._form_gradient()

    @property
    def separable(self) -> bool:
        """Whether the gradient of S consists of those of different rows."""
        rows = {self.basis.row(draw) for draw in self.gradients}
        with without_torch_function():
            return len(rows) == len(self.gradients) and self.parameter.grad is None

    def squared_norm(self) -> float:
        """Return the squared norm of the gradient, if it is separable."""
        found = self.gradients.items()
        return float(sum(self.basis.length(i) ** 2 * g.dot(g).double() for i, g in found))

    def step(self, group: Mapping[str, Any]) -> None:
        """Take a step of SGD with a separable gradient and the settings of a parameter group."""
        basis, found = self.basis, self.gradients.items()
        if found:  # torch skips a parameter without a gradient
            self._rows.step(group, {basis.row(i): (basis.length(i), g) for i, g in found})

    def settle(self) -> None:
        """Apply all deferred updates to S and its momentum, and form the gradient."""
        if not self.settled:
            self._rotate_back()
            self.settled, self.parameter.__class__ = True, nn.Parameter
            del self._rows
        self._form_gradient()

    def _rotate_back(self) -> None:
        rows, momentum = self._rows, self._momentum
        if rows.momenta is not None and momentum is None:
            momentum = torch.empty_like(self._matrix).view(self._shape)
        if rows.stepped:
            into = None if momentum is None else momentum.view_as(self._matrix)
            rows.rotate_into(self.basis.basis.T.to(self._matrix), self._matrix, into)
        if momentum is not None:
            self.state.setdefault(MOMENTUM, momentum)

    def _form_gradient(self) -> None:
        """Add the gradients of the draws to `parameter.grad`, as torch does."""
        if self.gradients:
            z = self.basis.noise(self.gradients, self._matrix)
            added = z.T @ torch.stack(list(self.gradients.values()))
            with without_torch_function():  # the parameter may be in a later block
                added, known = added.view(self._shape), self.parameter.grad
                self.parameter.grad = added if known is None else known.add_(added)
        self.gradients.clear()


class SampledWeights(torch.autograd.Function):
    """mean + S z for factors in the same block, with gradients for the means and the factors.

    One function for all layers, since the overhead of a call matters in small networks.
    """

    @staticmethod
    def forward(
        ctx: Any,
        factors: list[RotatedFactor],
        first: int,
        sample: tuple[int, ...],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the weights of consecutive draws; `tensors` are the means, then the factors."""
        ctx.factors, ctx.first, ctx.sample = factors, first, sample
        ctx.set_materialize_grads(False)
        weights = []
        for factor, mean in zip(factors, tensors[: len(factors)], strict=True):
            sampled = factor.weights(mean, first, math.prod(sample)).view(*sample, *mean.shape)
            weights.append(laid_out(sampled, mean) if mean.ndim == 4 else sampled)
        return tuple(weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the means, and add up those of the factors."""
        factors: list[RotatedFactor] = ctx.factors
        with own_precision(factors[0].device):
            for factor, gradient in zip(factors, gradients, strict=True):
                # `backward(inputs=...)` may exclude this factor.
                if gradient is not None and _accumulates(factor.accumulator):
                    factor.accumulate(ctx.first, gradient.reshape(math.prod(ctx.sample), -1))
        means = (g if g is None or not ctx.sample else g.sum(0) for g in gradients)
        return None, None, None, *means, *[None] * len(factors)


def _accumulates(node: Any) -> bool:
    """Return whether the current backward pass executes a node that accumulates a gradient."""
    try:
        return accumulates_gradient(node)
    except RuntimeError as error:
        raise RuntimeError(
            "tacit.SGD: gradients of the factors come from backward(), not from "
            "torch.autograd.grad, which needs torch.optim.SGD."
        ) from error
