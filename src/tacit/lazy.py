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
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tacit.covariance import LowRank
from tacit.distribution import Distribution, laid_out, own_precision

MOMENTUM = "momentum_buffer"  # torch's name for it in the state of SGD
SMALL = 50_000  # numbers in the factors of a layer; below, each step may as well touch them
MOST_STEPS = 32


class Factor:
    """A factor S of shape (R, *shape) since a block of steps began.

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
        # Row j of Z S until it is used, then g_j.
        self.rows = Z @ _matrix(parameter)
        self.momentum_rows = None if momentum is None else Z @ _matrix(momentum)
        self.received: dict[int, int] = {}  # gradients of this step: first row -> how many
        # S_t and V_t are these combinations of S, V and the outer products.
        self.s = np.zeros(2 + len(Z))
        self.s[0] = 1.0
        self.v = None if momentum is None else np.roll(self.s, 1)

    def deviations(self, first: int, count: int) -> Tensor:
        """Return S_t z for some rows of Z, of shape (count, P)."""
        new = slice(first, first + count)
        past = self.s[2 : 2 + first] * self.gram[new, :first]
        weights = np.concatenate([past, self.s[0] * np.eye(count)], axis=1)
        found = torch.from_numpy(weights).to(self.rows) @ self.rows[: first + count]
        if self.momentum_rows is not None and self.s[1]:
            found.add_(self.momentum_rows[new], alpha=self.s[1])
        return found

    def receive(self, first: int, gradients: Tensor) -> None:
        """Take the gradients of sampled weights, of shape (count, *shape); they add up."""
        place = self.rows[first : first + len(gradients)].view_as(gradients)
        if first in self.received:
            place.add_(gradients)
        else:
            place.copy_(gradients)
        self.received[first] = len(gradients)

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

    def squared_norm(self) -> float:
        """Return the squared norm of the gradient of this step, a sum of outer products."""
        index = [first + i for first, count in self.received.items() for i in range(count)]
        rows = self.rows[index]
        products = (rows @ rows.T).double().cpu().numpy()
        return float((products * self.gram[np.ix_(index, index)]).sum())

    def settle(self) -> None:
        """Bring S and V up to date; gradients that no step has taken go to `parameter.grad`."""
        for first, count in self.received.items():
            used = slice(first, first + count)
            add_gradient(self.parameter, self.Z[used], self.rows[used])
        self.received.clear()
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
        used = 1 + max(np.flatnonzero(coefficients[2:]), default=-1)
        scaled = self.Z[:used].T * torch.from_numpy(coefficients[2 : 2 + used]).to(self.Z)
        return scaled, self.rows[:used]


@dataclass(eq=False)
class Block:
    """The steps from one time that factors are touched to the next.

    Args:
        layers: For each layer its factors, by the names of its tensors.
        size: For how many draws there is noise.
        used: How many of them are made.
        open: Whether the factors are behind.
    """

    layers: dict[str, dict[str, Factor]]
    size: int
    used: int = 0
    open: bool = True

    @property
    def factors(self) -> list[Factor]:
        """All factors."""
        return [factor for layer in self.layers.values() for factor in layer.values()]

    def serves(self, labels: Collection[str], count: int) -> bool:
        """Return whether some draws can be made for these layers, and nobody changed a factor."""
        same = all(f.parameter._version == f.version for f in self.factors)
        return same and self.layers.keys() == set(labels) and self.used + count <= self.size

    def settle(self) -> None:
        """Bring the factors up to date."""
        self.open = False
        for factor in self.factors:
            factor.settle()


class _Shifted(torch.autograd.Function):
    """mean + S z; its gradient goes to the mean and into the block."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, deviation: Tensor, block: Block, factor: Factor, first: int
    ) -> Tensor:
        ctx.place = block, factor, first
        ctx.shape = mean.shape
        return laid_out(mean + deviation, mean)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        block, factor, first = ctx.place
        stacked = gradient.reshape(-1, *ctx.shape)
        if block.open:
            factor.receive(first, stacked)
        else:
            noise = factor.Z[first : first + len(stacked)]
            with own_precision(gradient.device.type):
                add_gradient(factor.parameter, noise, stacked.flatten(1))
        mean = gradient if gradient.shape == ctx.shape else gradient.sum(0)
        return mean, None, None, None, None


class LazyFactors:
    """The factors of a model that `tacit.SGD` trains, touched only when it has to be.

    A forward pass takes one number from torch's generator. The noise of a block follows from the
    number of its first pass. The same number again, as where activations are recomputed, gives the
    same draws again.

    Args:
        optimizer: Which trains them.
    """

    def __init__(self, optimizer: torch.optim.SGD) -> None:
        self._optimizer: Callable[[], torch.optim.SGD | None] = weakref.ref(optimizer)
        self._block: Block | None = None
        self._passes: dict[int, int] = {}  # since the last step: number -> first row
        self._versions: tuple[int, ...] | None = None  # of the means, since the last step

    @property
    def behind(self) -> bool:
        """Whether factors are behind and the next pass will leave them so."""
        return self._block is not None and self._block.used < self._block.size

    def draw(
        self, distributions: Mapping[str, Distribution], shape: tuple[int, ...]
    ) -> dict[str, dict[str, Tensor]]:
        """Draw the weights of the layers that are better off so: label -> tensors by name.

        Args:
            distributions: Of all random layers.
            shape: () for one draw, (M,) for several.
        """
        count = math.prod(shape)
        chosen = {n: d for n, d in distributions.items() if self._suits(d, count)}
        if not chosen or not _ordinary_call(_device(chosen)) or self._changed(chosen):
            self.settle()
            return {}
        number = int(torch.randint(2**62, ()))
        with torch.no_grad(), own_precision(_device(chosen)):
            if number not in self._passes:
                if self._block is None or not self._block.serves(chosen, count):
                    self._begin(chosen, count, number)
                assert self._block is not None
                self._passes[number] = self._block.used
                self._block.used += count
            block, first = self._block, self._passes[number]
            assert block is not None
            deviations = [factor.deviations(first, count) for factor in block.factors]
        drawn: dict[str, dict[str, Tensor]] = {}
        shifted: Any = _Shifted.apply
        for label, factors in block.layers.items():
            mean, drawn[label] = chosen[label].mean, {}
            for name, factor in factors.items():
                deviation = deviations.pop(0).view(*shape, *mean[name].shape)
                drawn[label][name] = shifted(mean[name], deviation, block, factor, first)
        return drawn

    def step(self) -> None:
        """Take a step of SGD with the factors that are behind."""
        optimizer = self._optimizer()
        if self._block is not None and optimizer is not None:
            if any(factor.parameter.grad is not None for factor in self._block.factors):
                self.settle()  # there are gradients by another way too: torch takes this step
            else:
                groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
                for factor in self._block.factors:
                    factor.step(groups[id(factor.parameter)])
        self._passes.clear()
        self._versions = None

    def squared_norm(self) -> float:
        """Return the squared norm of the factors' gradients."""
        return sum(factor.squared_norm() for factor in self._behind())

    def scale_gradients(self, by: float) -> None:
        """Multiply the factors' gradients."""
        for factor in self._behind():
            for first, count in factor.received.items():
                factor.rows[first : first + count].mul_(by)

    def forget_gradients(self) -> None:
        """Drop the gradients that no step has taken."""
        for factor in self._behind():
            factor.received.clear()

    def settle(self) -> None:
        """Bring all factors up to date."""
        if self._block is not None:
            device = self._block.factors[0].parameter.device.type
            with torch.inference_mode(False), torch.no_grad(), own_precision(device):
                self._block.settle()
        self._block = None
        self._passes.clear()

    def _behind(self) -> list[Factor]:
        return [] if self._block is None else self._block.factors

    def _begin(self, chosen: Mapping[str, Distribution], count: int, number: int) -> None:
        """Begin a new block."""
        self.settle()
        optimizer = self._optimizer()
        assert optimizer is not None
        rank = max(d.covariance.noise_size(d.shapes) for d in chosen.values())
        size = block_steps(rank, count) * count
        layers = {}
        for index, (label, distribution) in enumerate(chosen.items()):
            device = next(iter(distribution.mean.values())).device
            generator = torch.Generator(device).manual_seed(number + index)
            Z = distribution.draw_noise((size,), generator=generator)
            exact = Z.double().cpu().numpy()
            layers[label] = {
                name: Factor(parameter, optimizer.state[parameter], Z, exact @ exact.T)
                for name, parameter in distribution.factors.items()
            }
        self._block = Block(layers, size)

    def _suits(self, distribution: Distribution, count: int) -> bool:
        """Return whether a layer can be lazy, and is better off."""
        covariance, factors = distribution.covariance, distribution.factors.values()
        return (
            isinstance(covariance, LowRank)
            and _pays(covariance.rank, count)
            and sum(factor.numel() for factor in factors) >= SMALL
            and all(
                t.requires_grad and t.is_leaf and t.dtype in (torch.float32, torch.float64)
                for t in (*distribution.mean.values(), *factors)
            )
        )

    def _changed(self, chosen: Mapping[str, Distribution]) -> bool:
        """Return whether somebody else trains the means: then gradients must go the usual way."""
        optimizer = self._optimizer()
        if optimizer is None:
            return True
        versions = tuple(mean._version for d in chosen.values() for mean in d.mean.values())
        if self._versions is not None and versions != self._versions:
            self._optimizer = lambda: None
        self._versions = versions
        return self._optimizer() is None


class LazilyTrained(nn.Module):
    """A module whose submodule `factors` is brought up to date when somebody looks at it."""

    lazy: LazyFactors | None = None

    def follow(self, lazy: LazyFactors | None) -> None:
        """Let an optimizer bring the factors up to date lazily; for `tacit.SGD`."""
        self.settle()
        self.lazy = lazy

    def settle(self) -> None:
        """Bring the factors up to date. Whatever shows them does so by itself."""
        if self.lazy is not None:
            self.lazy.settle()

    @property
    def factors_as_kept(self) -> nn.Module:
        """The factors, perhaps not up to date."""
        return cast(nn.Module, self._modules["factors"])

    def __getattr__(self, name: str) -> Any:
        if name == "factors":
            self.settle()
        return super().__getattr__(name)

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return {**self.__dict__, "lazy": None}  # a copy is not what the optimizer trains

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        self.settle()
        return super().named_parameters(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self.settle()
        return super().state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.settle()  # before, so that nothing is added to what is loaded
        super()._load_from_state_dict(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.settle()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]


def add_gradient(parameter: Tensor, z: Tensor, gradients: Tensor) -> None:
    """Add the sum of outer products of noise (n, R) and gradients (n, P) to `parameter.grad`."""
    found = (z.T @ gradients).view_as(parameter)
    parameter.grad = found if parameter.grad is None else parameter.grad.add_(found)


def block_steps(rank: int, count: int) -> int:
    """Return after how many steps to touch the factors.

    A step reads the gradients of the block so far, in numbers of a weight count * steps / 2, and
    has its share of what touching factor and momentum reads and writes, 7 * rank / steps.
    """
    return min(MOST_STEPS, max(2, round(math.sqrt(14 * rank / count))))


def _pays(rank: int, count: int) -> bool:
    """Return whether less is read and written than by touching factor and momentum each step."""
    steps = block_steps(rank, count)
    return 5 * count + count * steps / 2 + 7 * rank / steps < 8 * rank


def _ordinary_call(device: str) -> bool:
    """Return whether gradients go their usual way: no transforms, one process, no loss scale."""
    distributed = torch.distributed
    return not (
        torch.compiler.is_compiling()
        or torch.is_inference_mode_enabled()
        or torch._C._are_functorch_transforms_active()
        or (torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16)
        or (
            distributed.is_available()
            and distributed.is_initialized()
            and distributed.get_world_size() > 1
        )
    )


def _device(distributions: Mapping[str, Distribution]) -> str:
    mean: Tensor = next(iter(next(iter(distributions.values())).mean.values()))
    return mean.device.type


def _matrix(factor: Tensor) -> Tensor:
    """Return a view of a factor as a matrix (R, P)."""
    return factor.detach().view(len(factor), -1)
