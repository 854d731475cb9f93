"""The factors whose updates `tacit.SGD` defers, and when these updates are applied."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from tacit._support.private_torch import without_torch_function
from tacit.training.optim.eligibility import eligible_layers
from tacit.training.optim.noise_basis import NoiseBasis, block_draws
from tacit.training.optim.rotated_factors import MOMENTUM, RotatedFactor, SampledWeights
from tacit.weights.covariance import LowRank
from tacit.weights.distribution import Distribution, own_precision


class DeferredFactors:
    """The factors of a model under `tacit.SGD`, with deferred updates.

    Draws along the same noise bases form a block. Each forward pass takes one integer from torch's
    generator as its seed; the noise of a block follows from the seed of its first pass.

    Args:
        optimizer: The optimizer of the factors.
    """

    def __init__(self, optimizer: torch.optim.SGD) -> None:
        self.layers: dict[str, dict[str, RotatedFactor]] = {}  # in the noise bases
        self.steps = 0  # number of steps deferred since the factors were last settled
        self._optimizer = weakref.ref(optimizer)
        self._used, self._planned = 0, 0  # numbers of draws in this block
        self._last_pass = range(0)  # draws of the last forward pass
        self._seeds: set[int] = set()  # seeds of the forward passes since the last step

    @property
    def factors(self) -> list[RotatedFactor]:
        """The factors of all layers."""
        return [factor for layer in self.layers.values() for factor in layer.values()]

    @property
    def within_block(self) -> bool:
        """Whether the next draw uses the current noise basis."""
        return self._used < self._planned

    @property
    def last_noise(self) -> dict[str, Tensor]:
        """Noise of the last forward pass since the last step: layer -> (draws, R)."""
        found = {}
        for label, factors in self.layers.items() if self._last_pass else ():
            factor = next(iter(factors.values()))
            with without_torch_function():
                found[label] = factor.basis.noise(self._last_pass, factor.parameter.detach())
        return found

    def draw(
        self, distributions: Mapping[str, Distribution], shape: tuple[int, ...]
    ) -> dict[str, dict[str, Tensor]]:
        """Draw the weights of the eligible layers: label -> tensors by name.

        Raises:
            RuntimeError: If the draws of an earlier pass would have to be repeated.
        """
        count = math.prod(shape)
        with without_torch_function():
            eligible = eligible_layers(distributions, count, self._optimizer())
        if not eligible:
            self.settle()
            return {}
        with own_precision(_device(eligible)):
            with torch.no_grad():
                self._take_draws(eligible, count)
            factors = self.factors
            means = [eligible[n].mean[name] for n, layer in self.layers.items() for name in layer]
            parameters = [factor.parameter for factor in factors]
            sampled: Any = SampledWeights.apply
            weights = iter(sampled(factors, self._last_pass[0], shape, *means, *parameters))
        return {n: {name: next(weights) for name in layer} for n, layer in self.layers.items()}

    def begin_step(self) -> None:
        """Check the gradients before torch updates any group, since torch may change them."""
        self._seeds.clear()
        self._last_pass = range(0)
        self.settle_if_mixed()
        self.steps += any(factor.gradients for factor in self.factors)

    def step(self, group: Mapping[str, Any]) -> None:
        """Take a step of SGD with the factors of a parameter group."""
        own = set(map(id, group["params"])) if self.layers else set()
        for factor in self.factors:
            if id(factor.parameter) in own:
                factor.step(group)

    def settle_if_mixed(self) -> None:
        """Settle if gradients or states are not in the current bases, so that torch uses them."""
        if not self._has_own_states() or not all(factor.separable for factor in self.factors):
            self.settle()

    def settle(self) -> None:
        """Apply all deferred updates, and form the factors' gradients."""
        for factor in self.factors:
            with torch.inference_mode(False), torch.no_grad(), own_precision(factor.device):
                factor.settle()
        self.layers, self._used, self._planned, self.steps = {}, 0, 0, 0

    def _take_draws(self, eligible: Mapping[str, Distribution], count: int) -> None:
        """Determine the draws of a forward pass, in a new block if this one is exhausted."""
        seed = int(torch.randint(2**62, ()))
        if seed in self._seeds:
            raise RuntimeError(
                "tacit.SGD(deferred=True): the state of torch's generator is that of an earlier "
                "forward pass of this step, but deferred draws can't be repeated. Recompute "
                "activations with torch.utils.checkpoint, or omit deferred=True."
            )
        self._seeds.add(seed)
        now = [id(S) for d in eligible.values() for S in d.factors.values()]
        same = now == [id(factor.parameter) for factor in self.factors]
        if not (same and self.within_block and self._has_own_states()):
            self.settle()
            self._begin_block(eligible, seed)
        self._last_pass = range(self._used, self._used + count)
        self._used += count

    def _begin_block(self, eligible: Mapping[str, Distribution], seed: int) -> None:
        state = cast(torch.optim.SGD, self._optimizer()).state
        for index, (label, distribution) in enumerate(eligible.items()):
            rank = cast(LowRank, distribution.covariance).rank
            basis = NoiseBasis(rank, torch.Generator().manual_seed(seed + index))
            layer = self.layers[label] = {}  # filled one by one: allocation may fail midway
            for name, factor in distribution.factors.items():
                layer[name] = RotatedFactor(cast(nn.Parameter, factor), state[factor], basis)
            self._planned = max(self._planned, block_draws(rank))

    def _has_own_states(self) -> bool:
        """Return whether the optimizer still holds the factors' states of this block."""
        optimizer = self._optimizer()
        return optimizer is not None and all(
            optimizer.state.get(factor.parameter) is factor.state and MOMENTUM not in factor.state
            for factor in self.factors
        )


def _device(distributions: Mapping[str, Distribution]) -> str:
    return next(iter(next(iter(distributions.values())).mean.values())).device.type
