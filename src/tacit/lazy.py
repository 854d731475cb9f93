"""Low-rank factors that `tacit.SGD` trains, and when they have to be brought up to date."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tacit.coasting import Course
from tacit.covariance import LowRank
from tacit.directions import MOMENTUM, Block, Directions, TurnedFactor, block_draws, pays
from tacit.distribution import Distribution, laid_out, own_precision
from tacit.noise import Gaussian

WIDE = 500_000  # numbers in the factors of a layer from which on it is worth while to be lazy,
SMALL = 50_000  # also for others of the same model that have as many as this
LONGER = 4  # times as many draws as planned, so that the gradients of a step are of one block
PASSES = 10_000  # forward passes in a step that can be made again, with the same draws


class LazyFactors:
    """The factors of a model that `tacit.SGD` trains, touched only when it has to be.

    A forward pass takes one number from torch's generator. The noise of a block follows from the
    number of its first pass. The same number again in the same step, as where activations are
    recomputed, gives the same draws again.

    Args:
        optimizer: Which trains them.
    """

    def __init__(self, optimizer: torch.optim.SGD) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._left = False  # to torch, or another optimizer
        self._block: Block | None = None
        self._older: list[TurnedFactor] = []  # of the block before, if they have gradients yet
        self._passes: dict[tuple[int, int], tuple[Block, int]] = {}  # number, draws -> first draw
        # Means -> identity and version of their gradients, None if nothing has been added.
        self._watched: dict[Tensor, tuple[int, int] | None] = {}
        self._hooks: list[Any] = []
        _ALIVE.add(self)

    @property
    def within_block(self) -> bool:
        """Whether the next pass belongs to those along the same directions."""
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
        chosen = {n: d for n, d in distributions.items() if _suits(d, count, SMALL)}
        chosen = self._suitable(chosen) if chosen else {}
        if not chosen or not _ordinary_call(_device(chosen)):
            self.settle()
            return {}
        with own_precision(_device(chosen)):
            with torch.no_grad():
                block, first = self._place(chosen, count)
            means = [chosen[n].mean[name] for n, layer in block.layers.items() for name in layer]
            factors = [factor.parameter for factor in block.factors]
            shifted: Any = _Shifted.apply
            weights = iter(shifted(block, first, shape, *means, *factors))
        return {n: {name: next(weights) for name in layer} for n, layer in block.layers.items()}

    def begin_step(self) -> None:
        """Look at the gradients before any group has its step: torch may change them in it."""
        self._passes.clear()
        self._check_gradients()
        self.settle_if_mixed()

    def step(self, group: Mapping[str, Any]) -> None:
        """Take a step of SGD with the factors of a parameter group."""
        if self._block is not None:
            own = set(map(id, dict.__getitem__(cast(dict[str, Any], group), "params")))
            self._block.step(group, own)

    def _check_gradients(self) -> None:
        """Leave the factors to torch if somebody changes gradients without having looked.

        Through a list of parameters from before: what was done to the gradients of the means was
        not done to those of the factors, which were not there.
        """
        noted = {mean: seen for mean, seen in self._watched.items() if seen is not None}
        self._watched = dict.fromkeys(self._watched)
        if not noted or not any(factor.received for factor in self._factors()):
            return
        if all(mean.grad is None for mean in noted):
            self.forget_gradients()
        elif any(m.grad is not None and _identity(m.grad) != seen for m, seen in noted.items()):
            self.settle()
            self._left = True
            warnings.warn(
                "tacit.SGD: gradients were changed through references to parameters from before, "
                "where those of the factors are missing. Clip by optimizer.clip_grad_norm, or take "
                "model.parameters() anew each time. From now on this is torch.optim.SGD.",
                stacklevel=7,
            )

    def _watch(self, mean: Tensor) -> None:
        """Note which gradient a mean has whenever something is added to it."""
        if mean not in self._watched:
            self._watched[mean] = None
            mine = weakref.ref(self)

            def note(mean: Tensor) -> None:
                if (lazy := mine()) is not None and mean.grad is not None:
                    lazy._watched[mean] = _identity(mean.grad)

            self._hooks.append(mean.register_post_accumulate_grad_hook(note))

    def end(self) -> None:
        """Bring all factors up to date for the last time."""
        self.settle()
        while self._hooks:
            self._hooks.pop().remove()

    def settle_if_mixed(self) -> None:
        """Bring all up to date if there are gradients by another way too: torch adds them up."""
        if self._older or (self._block is not None and self._block.mixed):
            self.settle()

    def squared_norm(self) -> float:
        """Return the squared norm of the factors' gradients."""
        return sum(factor.squared_norm() for factor in self._factors())

    def scale_gradients(self, by: float) -> None:
        """Multiply the factors' gradients."""
        for factor in self._factors():
            factor.scale(by)
        for mean, seen in self._watched.items():
            if seen is not None and mean.grad is not None:
                self._watched[mean] = _identity(mean.grad)

    def forget_gradients(self) -> None:
        """Drop the gradients."""
        for factor in (*self._older, *self._factors()):
            factor.forget_gradient()
        self._older = []
        self._watched = dict.fromkeys(self._watched)

    def settle(self) -> None:
        """Bring all factors and their gradients up to date."""
        if self._block is not None or self._older:
            with self._quietly():
                for factor in self._factors():
                    factor.settle()
                for factor in (*self._older, *self._factors()):
                    factor.show_gradient()
                    factor.free()
        self._block, self._older = None, []

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        device = (*self._older, *self._factors())[0].parameter.device.type
        with torch.inference_mode(False), torch.no_grad(), own_precision(device):
            yield

    def before_step_of(self, optimizer: torch.optim.Optimizer) -> None:
        """Leave the factors to another optimizer that is about to train them."""
        if optimizer is self._optimizer() or self._block is None:
            return
        theirs = parameter_ids(optimizer)
        if any(id(factor.parameter) in theirs for factor in self._factors()):
            self.settle()
            self._left = True

    def _factors(self) -> list[TurnedFactor]:
        return [] if self._block is None else self._block.factors

    def _place(self, chosen: Mapping[str, Distribution], count: int) -> tuple[Block, int]:
        """Return where the noise of a pass is: a block and its first draw."""
        number = int(torch.randint(2**62, ()))
        if (number, count) not in self._passes:
            block = self._block
            if block is not None and not _fits(block, chosen, self._optimizer()):
                self.settle()
            if self._block is None or self._over(self._block):
                self._block = self._new_block(chosen, number)
            block = self._block
            self._passes[number, count] = block, block.used
            block.used += count
            if len(self._passes) > PASSES:
                self._passes.pop(next(iter(self._passes)))
        return self._passes[number, count]

    def _over(self, block: Block) -> bool:
        """Return whether there should be new directions: rather not in the middle of a step."""
        return block.used >= (LONGER * block.size if self._passes else block.size)

    def _new_block(self, chosen: Mapping[str, Distribution], number: int) -> Block:
        optimizer = cast(torch.optim.SGD, self._optimizer())
        old = {} if self._block is None else self._block.layers
        for factor in self._factors():
            factor.settle()
        # In many loops they are dropped before anybody asks for them.
        self._older += [factor for factor in self._factors() if factor.received]
        layers, size = {}, 0
        for index, (label, distribution) in enumerate(chosen.items()):
            for mean in distribution.mean.values():
                self._watch(mean)
            rank = cast(LowRank, distribution.covariance).rank
            directions = Directions(rank, torch.Generator().manual_seed(number + index))
            courses = _courses(optimizer, distribution.factors, rank)
            before = old.get(label, {})
            layers[label] = {
                name: TurnedFactor(
                    S, optimizer.state[S], courses[name], directions, before.get(name)
                )
                for name, S in distribution.factors.items()
            }
            size = max(size, block_draws(rank))
        return Block(layers, size)

    def _suitable(self, distributions: Mapping[str, Distribution]) -> dict[str, Distribution]:
        """Return the layers whose factors are the optimizer's and nobody else's."""
        optimizer = self._optimizer()
        if optimizer is None or self._left:
            return {}
        own = parameter_ids(optimizer)
        return {
            label: distribution
            for label, distribution in distributions.items()
            if all(id(S) in own for S in distribution.factors.values())
            and _can(distribution, optimizer)
        }


class _Shifted(torch.autograd.Function):
    """mean + S z of all layers; its gradient goes to the means, and to the turned factors.

    One function for all of them: what it takes to call one counts in small networks.
    """

    @staticmethod
    def forward(
        ctx: Any, block: Block, first: int, sample: tuple[int, ...], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        count, factors = math.prod(sample), block.factors
        means = tensors[: len(factors)]
        ctx.place, ctx.sample = (factors, first), sample
        ctx.set_materialize_grads(False)
        weights = []
        for factor, mean in zip(factors, means, strict=True):
            sampled = factor.weights(mean, first, count)
            sampled = sampled.view(*sample, *mean.shape)
            weights.append(laid_out(sampled, mean) if mean.ndim == 4 else sampled)
        return tuple(weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        factors, first = ctx.place
        count = math.prod(ctx.sample)
        with own_precision(factors[0].parameter.device.type):
            for factor, gradient in zip(factors, gradients, strict=True):
                # Not if somebody asks for gradients of other parameters only.
                if gradient is not None and _goes_to(factor.accumulator):
                    factor.receive(first, gradient.reshape(count, -1))
        means = (g if g is None or not ctx.sample else g.sum(0) for g in gradients)
        return None, None, None, *means, *[None] * len(factors)


def parameter_ids(optimizer: torch.optim.Optimizer) -> set[int]:
    """Return the identities of what an optimizer trains, without bringing it up to date."""
    return {id(p) for group in map(dict, optimizer.param_groups) for p in group["params"]}


_ALIVE: weakref.WeakSet[LazyFactors] = weakref.WeakSet()


@register_optimizer_step_pre_hook
def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for lazy in list(_ALIVE):
        lazy.before_step_of(optimizer)


def _goes_to(node: Any) -> bool:
    """Return whether the backward pass that runs now accumulates a parameter's gradient."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError as error:
        raise RuntimeError(
            "tacit.SGD: gradients of the factors come by backward(), not by torch.autograd.grad; "
            "use torch.optim.SGD for it."
        ) from error


def has_wide_layers(distributions: Iterable[Distribution]) -> bool:
    """Return whether some layer is better off if its factors are touched rarely."""
    return any(_suits(distribution, 1, WIDE) for distribution in distributions)


def _suits(distribution: Distribution, count: int, size: int) -> bool:
    """Return whether the factors of a layer have this size, and a step of some draws pays."""
    covariance = distribution.covariance
    return (
        isinstance(covariance, LowRank)
        and isinstance(distribution.noise, Gaussian)
        and pays(covariance.rank, count)
        and sum(S.numel() for S in distribution.factors.values()) >= size
    )


def _can(distribution: Distribution, optimizer: torch.optim.SGD) -> bool:
    """Return whether nothing is unusual about the tensors of a layer."""
    factors = distribution.factors.values()
    return all(
        tensor.requires_grad and tensor.is_leaf and tensor.dtype in (torch.float32, torch.float64)
        for tensor in (*distribution.mean.values(), *factors)
    ) and all(
        S.is_contiguous() and not _has_hooks(S) and _like(optimizer.state.get(S, {}), S)
        for S in factors
    )


def _like(state: Mapping[str, Any], factor: Tensor) -> bool:
    """Return whether a momentum, if there is one, is such as its factor."""
    momentum = state.get(MOMENTUM)
    return momentum is None or (
        momentum.dtype == factor.dtype
        and momentum.device == factor.device
        and momentum.is_contiguous()
    )


def _fits(
    block: Block, chosen: Mapping[str, Distribution], optimizer: torch.optim.SGD | None
) -> bool:
    """Return whether a block is of these layers, and nobody has changed a factor or its state."""
    then = [(id(factor.parameter), factor.version) for factor in block.factors]
    now = [(id(S), S._version) for d in chosen.values() for S in d.factors.values()]
    return then == now and all(
        optimizer is not None and optimizer.state.get(factor.parameter) is factor.state
        for factor in block.factors
    )


def _courses(
    optimizer: torch.optim.SGD, factors: Mapping[str, Tensor], rank: int
) -> dict[str, Course]:
    """Return the courses of the factors of a layer: one for each parameter group."""
    groups = {
        id(parameter): index
        for index, group in enumerate(map(dict, optimizer.param_groups))
        for parameter in group["params"]
    }
    courses: dict[tuple[int, bool], Course] = {}
    found = {}
    for name, S in factors.items():
        momentum = optimizer.state[S].get(MOMENTUM) is not None
        found[name] = courses.setdefault((groups[id(S)], momentum), Course(rank, momentum))
    return found


def _identity(tensor: Tensor) -> tuple[int, int]:
    return id(tensor), tensor._version


def _has_hooks(parameter: Tensor) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _ordinary_call(device: str) -> bool:
    """Return whether gradients go their usual way: no transforms, no processes, no float16."""
    distributed = torch.distributed
    return not (
        torch.is_inference_mode_enabled()
        or torch._C._are_functorch_transforms_active()
        or (torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16)
        or (distributed.is_available() and distributed.is_initialized())
        or (device == "cuda" and torch.cuda.is_current_stream_capturing())
    )


def _device(distributions: Mapping[str, Distribution]) -> str:
    mean: Tensor = next(iter(next(iter(distributions.values())).mean.values()))
    return mean.device.type
