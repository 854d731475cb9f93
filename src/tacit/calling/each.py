"""A draw of the weights for every example of a batch, in one ordinary pass through the module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support.private_torch import transforms_active
from tacit._support.trees import map_tensors, tensors_in
from tacit.calling.activation import NewLayoutError, NotInActivationSpaceError, noisy_weights
from tacit.calling.caller import Caller, Inputs, Weights
from tacit.calling.trial import agree, trial
from tacit.weights.distribution import Distribution
from tacit.weights.layers import RandomLayer


@dataclass
class ActivationSpace:
    """What is known about a module's use of weights with noise in activation space.

    Args:
        refused: Parameters that the module uses in an operation without a rule: name -> operation.
        verified: Train mode -> whether outputs agree with those in weight space.
        layouts: Parameter -> where the batch has been in the inputs of its operation.
        refused_samples: Like `refused`, in calls with the same noise for all examples.
    """

    refused: dict[str, str] = field(default_factory=dict)
    verified: dict[bool, bool] = field(default_factory=dict)
    layouts: dict[str, set[str]] = field(default_factory=dict)
    refused_samples: dict[str, str] = field(default_factory=dict)

    def refuse(self, error: NotInActivationSpaceError, samples: bool = False) -> None:
        """Call parameters in weight space from now on: in calls with samples, or in all others."""
        refused = self.refused_samples if samples else self.refused
        refused.update(dict.fromkeys(error.names, error.operation))


@dataclass(frozen=True)
class EachDraw:
    """A draw of the weights for every example.

    Args:
        layers: The layers with noise in activation space, with their distributions.
        noise: Their noise z, label -> (examples, K).
        shared: Sampled weights of the other layers, the same for all examples.
    """

    layers: Mapping[str, tuple[RandomLayer, Distribution]]
    noise: Mapping[str, Tensor]
    shared: Weights

    def per_example(self, layouts: dict[str, set[str]], extend: bool = True) -> Weights:
        """Return the weights of all examples, without forming them; see `noisy_weights`."""
        size = len(next(iter(self.noise.values())))
        return {**self.shared, **noisy_weights(self.layers, self.noise, size, layouts, extend)}

    def of_example(self, index: int) -> Weights:
        """Return the weights of one example."""
        weights = dict(self.shared)
        for label, (layer, distribution) in self.layers.items():
            for tensor, sampled in distribution.weights(self.noise[label][index]).items():
                weights[layer.parameters[tensor]] = sampled
        return weights


def call_each(
    caller: Caller,
    space: ActivationSpace,
    module: nn.Module,
    inputs: Inputs,
    draw: Callable[[torch.Generator | None], EachDraw],
    generator: torch.Generator | None,
    fallback: Callable[[], Any],
) -> Any:
    """Call the module on a batch with a draw of the weights for every example.

    The first call in each mode finds out which layers can be called in activation space, and
    compares the outputs of some examples with those in weight space. If they differ, because
    examples depend on each other or on their place in the batch, the fallback is called from then
    on. Inputs with the batch in a new place are compared again. A compiled call doesn't compare,
    but heeds what earlier calls have found.

    Args:
        caller: Calls the module.
        space: What earlier calls have found; extended.
        module: The module to call.
        inputs: Its arguments, with the batch first.
        draw: Draws weights for every example; one draw for all in the layers that can't have more.
        generator: Source of randomness.
        fallback: Calls the module with fewer draws.
    """
    mode = module.training
    if transforms_active():
        return fallback()
    compiling = torch.compiler.is_compiling()
    if compiling and mode not in space.verified:
        raise RuntimeError(
            'draws="each": call the model once in this mode before it is compiled, to verify that '
            "examples don't depend on each other. Otherwise use draws=1."
        )
    if mode not in space.verified:
        agreed = _verify(caller, space, module, inputs, draw)
        if agreed is None:
            return fallback()
        space.verified[mode] = agreed
    # The call in the other mode may have refused the layers of this one.
    drawn = draw(generator) if space.verified[mode] else None
    if drawn is None or not drawn.layers:
        return fallback()
    if compiling:
        return caller.call(module, drawn.per_example(space.layouts, extend=False), inputs)
    try:
        return _call_verified(caller, space, module, inputs, drawn)
    except NewLayoutError:
        agreed = _verify(caller, space, module, inputs, draw)
        if agreed is not None:
            space.verified[mode] = agreed
        if agreed:
            return _call_verified(caller, space, module, inputs, drawn)
    except NotInActivationSpaceError:  # inputs of other shapes than in the first call
        pass
    return fallback()


def _call_verified(
    caller: Caller, space: ActivationSpace, module: nn.Module, inputs: Inputs, drawn: EachDraw
) -> Any:
    weights = drawn.per_example(space.layouts, extend=False)
    formed = {name: getattr(weight, "plain", weight) for name, weight in weights.items()}
    return caller.verified_call(module, formed, partial(caller.call, module, weights, inputs))


def _verify(
    caller: Caller,
    space: ActivationSpace,
    module: nn.Module,
    inputs: Inputs,
    draw: Callable[[torch.Generator | None], EachDraw],
) -> bool | None:
    """Return whether some examples have the outputs of weight space; None if it can't be told."""
    # A generator of its own: the user's gives the same draws in the first call as in later ones.
    like = next(module.parameters())
    drawn = partial(draw, torch.Generator(like.device).manual_seed(0))
    with trial(module):
        # Raises the module's own error if the call itself is wrong.
        first, second = (caller.call(module, {}, inputs) for _ in range(2))
    deterministic = agree(first, second) is not False
    layouts = {name: set(places) for name, places in space.layouts.items()}
    with trial(module, evaluation=not deterministic):
        agreed = _agrees(caller, space, module, inputs, drawn)
    if not agreed:
        space.layouts = layouts
    return agreed


def _agrees(
    caller: Caller,
    space: ActivationSpace,
    module: nn.Module,
    inputs: Inputs,
    draw: Callable[[], EachDraw],
) -> bool | None:
    while True:
        drawn = draw()
        if not drawn.layers:
            return False
        size = len(next(iter(drawn.noise.values())))
        if size < 2:
            return None
        try:
            output = caller.call(module, drawn.per_example(space.layouts), inputs)
            break
        except NotInActivationSpaceError as error:
            space.refuse(error)
    found = []
    for index in sorted({0, size // 2, size - 1}):
        try:
            expected = caller.call(module, drawn.of_example(index), _row(inputs, index))
        except (RuntimeError, ValueError, IndexError):  # not for a single example
            return False
        rows = _row(output, index, size)
        if not rows:  # no output has the batch first
            return False
        found.append(agree(rows, _row(expected, 0, 1)))
    return None if None in found else all(found)


def _row(tree: Any, index: int, size: int | None = None) -> Any:
    """Return one example of a batch as a batch of its own; of outputs, the tensors with a batch."""
    if size is None:
        return map_tensors(lambda t: t[index : index + 1] if t.ndim else t, tree)
    return [t[index : index + 1] for t in tensors_in(tree) if t.ndim and len(t) == size]
