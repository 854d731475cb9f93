"""The factors whose updates `tacit.SGD` defers, and when these updates are applied."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from tacit._support.private_torch import without_torch_function
from tacit.training.optim.eligibility import eligible_layers, ordinary_call
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
        self._block: NoiseBlock | None = None
        # Settled factors of earlier blocks whose gradients are not in `parameter.grad` yet.
        self._earlier_factors: list[RotatedFactor] = []
        # Passes since the last step: seed and number of draws -> block and index of first draw.
        self._passes: dict[tuple[int, int], tuple[NoiseBlock, int]] = {}

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
            found[label] = factor.noise_basis.noise(first, count, factor.values)
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
        optimizer = self._optimizer()
        with without_torch_function():
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
        self.settle_if_mixed()
        self.steps += any(factor.weight_gradients for factor in self._factors())

    def step(self, group: Mapping[str, Any]) -> None:
        """Take a step of SGD with the factors of a parameter group."""
        if self._block is not None:
            self._block.step(group, set(map(id, group["params"])))

    def settle_if_mixed(self) -> None:
        """Settle if some gradients are not in the current basis: torch then adds them up."""
        if self._earlier_factors or (self._block is not None and self._block.mixed):
            self.settle()

    def squared_norm(self) -> float:
        """Return the squared norm of the factors' gradients."""
        return sum(factor.squared_norm() for factor in self._factors())

    def scale_gradients(self, by: float) -> None:
        """Multiply the factors' gradients."""
        for factor in self._factors():
            factor.scale_gradients(by)

    def forget_gradients(self) -> None:
        """Drop the factors' gradients."""
        for factor in (*self._earlier_factors, *self._factors()):
            factor.forget_gradients()
        self._earlier_factors = []

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
        device = (*self._earlier_factors, *self._factors())[0].values.device.type
        with torch.inference_mode(False), torch.no_grad(), own_precision(device):
            yield

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
            rank = cast(LowRank, distribution.covariance).rank
            noise_basis = NoiseBasis(rank, torch.Generator().manual_seed(seed + index))
            row_momenta = _row_momenta(optimizer, distribution.factors, rank)
            previous = old.get(label, {})
            layers[label] = {
                name: RotatedFactor(
                    cast(nn.Parameter, S),
                    optimizer.state[S],
                    row_momenta[name],
                    noise_basis,
                    previous.get(name),
                )
                for name, S in distribution.factors.items()
            }
            size = max(size, block_draws(rank))
        return NoiseBlock(layers, size)


def _is_current(
    block: NoiseBlock, eligible: Mapping[str, Distribution], optimizer: torch.optim.SGD | None
) -> bool:
    """Return whether a block has exactly these layers, with the same factors and states."""
    then = [id(factor.parameter) for factor in block.factors]
    now = [id(S) for d in eligible.values() for S in d.factors.values()]
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


def _device(distributions: Mapping[str, Distribution]) -> str:
    mean: Tensor = next(iter(next(iter(distributions.values())).mean.values()))
    return mean.device.type
