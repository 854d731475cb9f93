"""The factors whose updates `tacit.SGD` defers, and when these updates are applied."""

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

# A block may exceed its planned draws by this factor, so that it doesn't end within a step.
MAX_OVERRUN = 4
MAX_REPLAYED = 10_000  # forward passes of one step that can be recomputed with the same draws


class DeferredFactors:
    """The factors of a model under `tacit.SGD`, with deferred updates.

    Each forward pass takes one integer from torch's generator as its seed. The noise of a block
    follows from the seed of its first pass. A repeated seed within a step, as when activations are
    recomputed, gives the same draws.

    Args:
        optimizer: The optimizer of the factors.
    """

    def __init__(self, optimizer: torch.optim.SGD) -> None:
        self.steps = 0  # deferred since the factors were last settled
        self._optimizer = weakref.ref(optimizer)
        self._stopped = False  # torch or another optimizer updates the factors from now on
        self._block: NoiseBlock | None = None
        # Settled factors of earlier blocks whose gradients are not in `parameter.grad` yet.
        self._earlier_factors: list[RotatedFactor] = []
        # Passes since the last step: seed and number of draws -> block and index of first draw.
        self._passes: dict[tuple[int, int], tuple[NoiseBlock, int]] = {}
        # Means -> identity and version of their gradients, None if nothing has been accumulated.
        self._mean_gradients: dict[Tensor, tuple[int, int] | None] = {}
        self._hooks: list[Any] = []
        _watch_other_optimizers(self)

    @property
    def active(self) -> bool:
        """Whether some factors are in a noise basis now."""
        return self._block is not None

    @property
    def within_block(self) -> bool:
        """Whether the next draw uses the current noise basis."""
        return self._block is not None and self._block.used < self._block.size

    @property
    def nbytes(self) -> int:
        """Bytes of rotated factors, their momentum and buffers."""
        blocks = {block for block, _ in self._passes.values()}
        blocks |= set() if self._block is None else {self._block}
        factors = {factor for block in blocks for factor in block.factors}
        return sum(factor.nbytes for factor in factors | set(self._earlier_factors))

    @property
    def last_noise(self) -> dict[str, Tensor]:
        """Noise of the last forward pass since the last step: layer -> (draws, R)."""
        if not self._passes:
            return {}
        (_, count), (block, first) = list(self._passes.items())[-1]
        found = {}
        for label, factors in block.layers.items():
            factor = next(iter(factors.values()))
            found[label] = factor.noise_basis.noise(first, count, factor.parameter.detach())
        return found

    def draw(
        self, distributions: Mapping[str, Distribution], shape: tuple[int, ...]
    ) -> dict[str, dict[str, Tensor]]:
        """Draw the weights of the eligible layers: label -> tensors by name.

        Args:
            distributions: Distributions of all random layers.
            shape: () for one draw, (M,) for several.
        """
        count = math.prod(shape)
        optimizer = None if self._stopped else self._optimizer()
        eligible = {} if optimizer is None else eligible_layers(distributions, count, optimizer)
        if not eligible or not ordinary_call(_device(eligible)):
            self.settle()
            return {}
        with own_precision(_device(eligible)):
            with torch.no_grad():
                block, first = self._block_and_draw(eligible, count)
            means = [eligible[n].mean[name] for n, layer in block.layers.items() for name in layer]
            factors = [factor.parameter for factor in block.factors]
            sampled: Any = SampledWeights.apply
            weights = iter(sampled(block, first, shape, *means, *factors))
        return {n: {name: next(weights) for name in layer} for n, layer in block.layers.items()}

    def begin_step(self) -> None:
        """Check the gradients before torch updates any group, since torch may change them."""
        self._passes.clear()
        self._check_gradients()
        self.settle_if_mixed()
        self.steps += any(factor.weight_gradients for factor in self._factors())

    def step(self, group: Mapping[str, Any]) -> None:
        """Take a step of SGD with the factors of a parameter group."""
        if self._block is not None:
            own = set(map(id, dict.__getitem__(cast(dict[str, Any], group), "params")))
            self._block.step(group, own)

    def _check_gradients(self) -> None:
        """Stop deferral if gradients were changed through references kept from earlier.

        Such a change reached the gradients of the means, but not those of the factors, which had
        not been formed.
        """
        noted = {mean: seen for mean, seen in self._mean_gradients.items() if seen is not None}
        self._mean_gradients = dict.fromkeys(self._mean_gradients)
        if not noted or not any(factor.weight_gradients for factor in self._factors()):
            return
        if all(mean.grad is None for mean in noted):
            self.forget_gradients()
        elif any(m.grad is not None and _identity(m.grad) != seen for m, seen in noted.items()):
            self.settle()
            self._stopped = True
            warnings.warn(
                "tacit.SGD: gradients were changed through references kept from earlier, which "
                "lack the gradients of the factors. Clip with optimizer.clip_grad_norm, or call "
                "model.parameters() again each time. From now on this is torch.optim.SGD.",
                stacklevel=7,
            )

    def _watch_gradient(self, mean: Tensor) -> None:
        """Note the identity of a mean's gradient after each accumulation."""
        if mean not in self._mean_gradients:
            self._mean_gradients[mean] = None
            mine = weakref.ref(self)

            def note(mean: Tensor) -> None:
                if (deferred := mine()) is not None and mean.grad is not None:
                    deferred._mean_gradients[mean] = _identity(mean.grad)

            self._hooks.append(mean.register_post_accumulate_grad_hook(note))

    def end(self) -> None:
        """Settle the factors, and remove all hooks."""
        self.settle()
        while self._hooks:
            self._hooks.pop().remove()

    def settle_if_mixed(self) -> None:
        """Settle if some gradients are not in the current basis: torch then adds them up."""
        if self._earlier_factors or (self._block is not None and self._block.mixed):
            self.settle()

    def squared_norm(self) -> float:
        """Return the squared norm of the factors' gradients."""
        return sum(factor.squared_norm() for factor in self._factors())

    def scale_gradients(self, by: float) -> None:
        """Multiply the factors' gradients; those of the means have been multiplied already."""
        for factor in self._factors():
            factor.scale_gradients(by)
        for mean, seen in self._mean_gradients.items():
            if seen is not None and mean.grad is not None:
                self._mean_gradients[mean] = _identity(mean.grad)

    def forget_gradients(self) -> None:
        """Drop the factors' gradients."""
        for factor in (*self._earlier_factors, *self._factors()):
            factor.forget_gradients()
        self._earlier_factors = []
        self._mean_gradients = dict.fromkeys(self._mean_gradients)

    def settle(self) -> None:
        """Apply all deferred updates, and form the factors' gradients."""
        if self._block is not None or self._earlier_factors:
            with self._outside_autograd():
                for factor in self._factors():
                    factor.settle()
                for factor in (*self._earlier_factors, *self._factors()):
                    factor.form_gradient()
                    factor.release_buffers()
        self._block, self._earlier_factors, self.steps = None, [], 0

    @contextmanager
    def _outside_autograd(self) -> Iterator[None]:
        device = (*self._earlier_factors, *self._factors())[0].parameter.device.type
        with torch.inference_mode(False), torch.no_grad(), own_precision(device):
            yield

    def before_step_of(self, optimizer: torch.optim.Optimizer) -> None:
        """Settle and stop deferral if another optimizer is about to update the factors."""
        if optimizer is self._optimizer() or self._block is None:
            return
        theirs = parameter_ids(optimizer)
        if any(id(factor.parameter) in theirs for factor in self._factors()):
            self.settle()
            self._stopped = True

    def _factors(self) -> list[RotatedFactor]:
        return [] if self._block is None else self._block.factors

    def _block_and_draw(
        self, eligible: Mapping[str, Distribution], count: int
    ) -> tuple[NoiseBlock, int]:
        """Return the block of a forward pass, and the index of its first draw in the block."""
        seed = int(torch.randint(2**62, ()))
        if (seed, count) not in self._passes:
            block = self._block
            if block is not None and not _is_current(block, eligible, self._optimizer()):
                self.settle()
            if self._block is None or self._is_used_up(self._block):
                self._block = self._new_block(eligible, seed)
            block = self._block
            self._passes[seed, count] = block, block.used
            block.used += count
            if len(self._passes) > MAX_REPLAYED:
                self._passes.pop(next(iter(self._passes)))
        return self._passes[seed, count]

    def _is_used_up(self, block: NoiseBlock) -> bool:
        """Return whether to begin a new block; preferably not in the middle of a step."""
        return block.used >= (MAX_OVERRUN * block.size if self._passes else block.size)

    def _new_block(self, eligible: Mapping[str, Distribution], seed: int) -> NoiseBlock:
        optimizer = cast(torch.optim.SGD, self._optimizer())
        old = {} if self._block is None else self._block.layers
        for factor in self._factors():
            factor.settle()
        # Not formed yet: many loops drop these gradients unused.
        self._earlier_factors += [factor for factor in self._factors() if factor.weight_gradients]
        self.steps = 0
        layers, size = {}, 0
        for index, (label, distribution) in enumerate(eligible.items()):
            for mean in distribution.mean.values():
                self._watch_gradient(mean)
            rank = cast(LowRank, distribution.covariance).rank
            noise_basis = NoiseBasis(rank, torch.Generator().manual_seed(seed + index))
            row_momenta = _row_momenta(optimizer, distribution.factors, rank)
            previous = old.get(label, {})
            layers[label] = {
                name: RotatedFactor(
                    S, optimizer.state[S], row_momenta[name], noise_basis, previous.get(name)
                )
                for name, S in distribution.factors.items()
            }
            size = max(size, block_draws(rank))
        return NoiseBlock(layers, size)


_INSTANCES: weakref.WeakSet[DeferredFactors] = weakref.WeakSet()
_HANDLES: list[Any] = []


def _watch_other_optimizers(deferred: DeferredFactors) -> None:
    """Settle factors before a step of another optimizer that updates them too.

    Registers one hook for all optimizers; it is removed with the last instance.
    """
    if not _INSTANCES:
        handle = register_optimizer_step_pre_hook(_before_step)
        _HANDLES.append(handle)
    _INSTANCES.add(deferred)
    weakref.finalize(deferred, _stop_watching)


def _stop_watching() -> None:
    if not _INSTANCES:
        while _HANDLES:
            _HANDLES.pop().remove()


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for deferred in list(_INSTANCES):
        deferred.before_step_of(optimizer)


def _is_current(
    block: NoiseBlock, eligible: Mapping[str, Distribution], optimizer: torch.optim.SGD | None
) -> bool:
    """Return whether a block has exactly these layers, with factors and states unchanged since."""
    then = [(id(factor.parameter), factor.version) for factor in block.factors]
    now = [(id(S), version(S)) for d in eligible.values() for S in d.factors.values()]
    return then == now and all(
        optimizer is not None and optimizer.state.get(factor.parameter) is factor.state
        for factor in block.factors
    )


def _row_momenta(
    optimizer: torch.optim.SGD, factors: Mapping[str, Tensor], rank: int
) -> dict[str, RowMomentum]:
    """Return the row momentum of each factor of a layer; factors of a parameter group share one."""
    groups = {
        id(parameter): index
        for index, group in enumerate(map(dict, optimizer.param_groups))
        for parameter in group["params"]
    }
    shared: dict[tuple[int, bool], RowMomentum] = {}
    found = {}
    for name, S in factors.items():
        has_momentum = optimizer.state[S].get(MOMENTUM) is not None
        key = groups[id(S)], has_momentum
        found[name] = shared.setdefault(key, RowMomentum(rank, has_momentum))
    return found


def _identity(tensor: Tensor) -> tuple[int, int]:
    return id(tensor), version(tensor)


def _device(distributions: Mapping[str, Distribution]) -> str:
    mean: Tensor = next(iter(next(iter(distributions.values())).mean.values()))
    return mean.device.type
