"""Low-rank factors that `tacit.SGD` trains, and when they have to be brought up to date."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tacit._support.private_torch import version
from tacit.training.optim.eligibility import eligible_layers, ordinary_call, parameter_ids
from tacit.training.optim.momentum import RowMomentum
from tacit.training.optim.noise_basis import NoiseBasis, block_draws
from tacit.training.optim.rotated_factors import MOMENTUM, NoiseBlock, RotatedFactor
from tacit.training.optim.sampled_weights import SampledWeights
from tacit.weights.covariance import LowRank
from tacit.weights.distribution import Distribution, own_precision

LONGER = 4  # times as many draws as planned, so that the gradients of a step are of one block
PASSES = 10_000  # forward passes in a step that can be made again, with the same draws


class DeferredFactors:
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
        self._block: NoiseBlock | None = None
        self._older: list[RotatedFactor] = []  # of the block before, if they have gradients yet
        self._passes: dict[
            tuple[int, int], tuple[NoiseBlock, int]
        ] = {}  # number, draws -> first draw
        # Means -> identity and version of their gradients, None if nothing has been added.
        self._watched: dict[Tensor, tuple[int, int] | None] = {}
        self._hooks: list[Any] = []
        _watch_other_optimizers(self)

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
        optimizer = None if self._left else self._optimizer()
        chosen = {} if optimizer is None else eligible_layers(distributions, count, optimizer)
        if not chosen or not ordinary_call(_device(chosen)):
            self.settle()
            return {}
        with own_precision(_device(chosen)):
            with torch.no_grad():
                block, first = self._place(chosen, count)
            means = [chosen[n].mean[name] for n, layer in block.layers.items() for name in layer]
            factors = [factor.parameter for factor in block.factors]
            sampled: Any = SampledWeights.apply
            weights = iter(sampled(block, first, shape, *means, *factors))
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
                if (deferred := mine()) is not None and mean.grad is not None:
                    deferred._watched[mean] = _identity(mean.grad)

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

    def _factors(self) -> list[RotatedFactor]:
        return [] if self._block is None else self._block.factors

    def _place(self, chosen: Mapping[str, Distribution], count: int) -> tuple[NoiseBlock, int]:
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

    def _over(self, block: NoiseBlock) -> bool:
        """Return whether there should be new directions: rather not in the middle of a step."""
        return block.used >= (LONGER * block.size if self._passes else block.size)

    def _new_block(self, chosen: Mapping[str, Distribution], number: int) -> NoiseBlock:
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
            directions = NoiseBasis(rank, torch.Generator().manual_seed(number + index))
            courses = _courses(optimizer, distribution.factors, rank)
            before = old.get(label, {})
            layers[label] = {
                name: RotatedFactor(
                    S, optimizer.state[S], courses[name], directions, before.get(name)
                )
                for name, S in distribution.factors.items()
            }
            size = max(size, block_draws(rank))
        return NoiseBlock(layers, size)


_ALIVE: weakref.WeakSet[DeferredFactors] = weakref.WeakSet()


def _watch_other_optimizers(deferred: DeferredFactors) -> None:
    """Settle factors before a step of another optimizer that trains them too.

    Registers one hook for all optimizers, as long as any updates are deferred.
    """
    if not _ALIVE:
        handle = register_optimizer_step_pre_hook(_before_step)
        _HANDLES.append(handle)
    _ALIVE.add(deferred)
    weakref.finalize(deferred, _stop_watching)


_HANDLES: list[Any] = []


def _stop_watching() -> None:
    if not _ALIVE:
        while _HANDLES:
            _HANDLES.pop().remove()


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for deferred in list(_ALIVE):
        deferred.before_step_of(optimizer)


def _fits(
    block: NoiseBlock, chosen: Mapping[str, Distribution], optimizer: torch.optim.SGD | None
) -> bool:
    """Return whether a block is of these layers, and nobody has changed a factor or its state."""
    then = [(id(factor.parameter), factor.version) for factor in block.factors]
    now = [(id(S), version(S)) for d in chosen.values() for S in d.factors.values()]
    return then == now and all(
        optimizer is not None and optimizer.state.get(factor.parameter) is factor.state
        for factor in block.factors
    )


def _courses(
    optimizer: torch.optim.SGD, factors: Mapping[str, Tensor], rank: int
) -> dict[str, RowMomentum]:
    """Return the courses of the factors of a layer: one for each parameter group."""
    groups = {
        id(parameter): index
        for index, group in enumerate(map(dict, optimizer.param_groups))
        for parameter in group["params"]
    }
    courses: dict[tuple[int, bool], RowMomentum] = {}
    found = {}
    for name, S in factors.items():
        momentum = optimizer.state[S].get(MOMENTUM) is not None
        found[name] = courses.setdefault((groups[id(S)], momentum), RowMomentum(rank, momentum))
    return found


def _identity(tensor: Tensor) -> tuple[int, int]:
    return id(tensor), version(tensor)


def _device(distributions: Mapping[str, Distribution]) -> str:
    mean: Tensor = next(iter(next(iter(distributions.values())).mean.values()))
    return mean.device.type
