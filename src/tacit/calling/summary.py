"""Descriptions of a variational model: `print(model)` and `model.call_notes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from tacit.calling.caller import Caller
from tacit.likelihood import Likelihood
from tacit.weights.layers import RandomLayer


def summary(
    counts: Mapping[str, int],
    module: nn.Module,
    layers: Sequence[RandomLayer],
    likelihood: Likelihood | None,
    caller: Caller,
) -> str:
    """Return the text of `print(model)`: parameters, random layers, calls that run in a loop."""
    lines = [
        f"Variational({type(module).__name__}): {counts['module']:,} parameters "
        f"+ {counts['factors']:,} in covariance factors"
    ]
    width = max(len(layer.label) for layer in layers)
    for layer in layers:
        tensors = ", ".join(
            f"{name} {'x'.join(map(str, shape)) or 'scalar'}"
            for name, shape in layer.shapes.items()
        )
        lines.append(f"  {layer.label:{width}}  {layer.covariance}  over {tensors}")
    if likelihood is not None:
        lines.append(f"  likelihood: {likelihood}")
    lines += [f"  {note}" for note in _loop_notes(caller)]
    return "\n".join(lines)


def call_notes(caller: Caller) -> list[str]:
    """Return how kinds of calls run, one sentence each, for the kinds that have been tried."""
    one_pass = [
        f"draws in {_mode(training)} mode {'run' if groupable else 'do not run'} in one pass"
        for training, groupable in caller.groupable.items()
    ]
    return _loop_notes(caller) + one_pass


def _loop_notes(caller: Caller) -> list[str]:
    return [
        f"{'draws' if draws else 'samples'} in {_mode(training)} mode run in a loop, "
        f"vmap can't: {obstacle}"
        for (draws, training), obstacle in caller.obstacles.items()
    ]


def _mode(training: bool) -> str:
    return "train" if training else "eval"
