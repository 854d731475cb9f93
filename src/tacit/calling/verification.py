"""Verification that noise in activation space gives the outputs of weight space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from tacit._support.trees import map_tensors, tensors_in
from tacit.calling.caller import Caller, Inputs
from tacit.calling.noisy_weight import NotInActivationSpaceError
from tacit.calling.operations import EachDraw
from tacit.calling.trial import agree, trial


@dataclass
class ActivationSpace:
    """What is known about a module's use of weights with noise in activation space.

    Args:
        refused: Parameters that the module uses in an operation without a rule: name -> operation.
        verified: Train mode -> whether outputs agree with those in weight space.
        kinds: Modes and flags among the arguments of the calls that were compared.
        layouts: Parameter -> where the batch has been in the inputs of its operation.
        refused_samples: Like `refused`, in calls with the same noise for all examples.
        unsplit: Why the latest inputs that have no batch size have none.
    """

    refused: dict[str, str] = field(default_factory=dict)
    verified: dict[bool, bool] = field(default_factory=dict)
    kinds: set[tuple[Any, ...]] = field(default_factory=set)
    layouts: dict[str, set[str]] = field(default_factory=dict)
    refused_samples: dict[str, str] = field(default_factory=dict)
    unsplit: str = ""

    def refuse(self, error: NotInActivationSpaceError, samples: bool = False) -> None:
        """Call parameters in weight space from now on: in calls with samples, or in all others."""
        refused = self.refused_samples if samples else self.refused
        refused.update(dict.fromkeys(error.names, error.operation))


def verify(
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
    mean = caller.call(module, {}, inputs)
    found = []
    for index in sorted({0, size // 2, size - 1}):
        try:
            expected = caller.call(module, drawn.of_example(index), _row(inputs, index))
        except (RuntimeError, ValueError, IndexError):  # not for a single example
            return False
        rows = _row(output, index, size)
        if not rows:  # no output has the batch first
            return False
        found.append(agree(rows, _row(expected, 0, 1), _row(mean, index, size)))
    return None if None in found else all(found)


def _row(tree: Any, index: int, size: int | None = None) -> Any:
    """Return one example of a batch as a batch of its own; of outputs, the tensors with a batch."""
    if size is None:
        return map_tensors(lambda t: t[index : index + 1] if t.ndim else t, tree)
    return [t[index : index + 1] for t in tensors_in(tree) if t.ndim and len(t) == size]
