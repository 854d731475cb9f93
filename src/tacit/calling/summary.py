"""Descriptions of a variational model: `print(model)` and `model.call_notes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from tacit.calling.caller import Caller
from tacit.calling.verification import ActivationSpace
from tacit.likelihood import Likelihood
from tacit.weights.layers import RandomLayer


def summary(
    counts: Mapping[str, int],
    module: nn.Module,
    layers: Sequence[RandomLayer],
    likelihood: Likelihood | None,
    notes: Sequence[str],
) -> str:
    """Return the text of `print(model)`: parameters, random layers, and notes on slow calls."""
    frozen = sum(each.numel() for each in module.parameters() if not each.requires_grad)
    trained = f", {counts['module'] - frozen:,} of them trained," if frozen else ""
    lines = [
        f"Variational({type(module).__name__}): {counts['module']:,} parameters{trained} "
        f"+ {counts['factors']:,} in covariance factors"
    ]
    width = max(len(layer.label) for layer in layers)
    for layer in layers:
        tensors = ", ".join(
            f"{name} {'x'.join(map(str, shape)) or 'scalar'}"
            for name, shape in layer.shapes.items()
            if name in layer.covariance.noisy_tensors(layer.shapes)
        )
        lines.append(f"  {layer.label:{width}}  {layer.covariance}  over {tensors}")
    if likelihood is not None:
        lines.append(f"  likelihood: {likelihood}")
    lines += [f"  {note}" for note in notes]
    return "\n".join(lines)


def call_notes(caller: Caller, space: ActivationSpace, failures_only: bool = False) -> list[str]:
    """Return how each kind of call made so far runs, in one sentence per kind."""
    kinds = (
        ("draws", "in one pass", "", caller.groupable),
        ("draws of each example", "in activation space", ": one draw per batch", space.verified),
    )
    found = [
        (
            works,
            f"{what} in {_mode(training)} mode "
            + (f"run {how}" if works else f"do not run {how}{instead}"),
        )
        for what, how, instead, tried in kinds
        for training, works in tried.items()
    ]
    in_weight_space = [
        f"{name} has one draw per batch: {operation} can't have more"
        for name, operation in space.refused.items()
    ]
    tried = [note for works, note in found if not (works and failures_only)]
    unsplit = [f"one draw per batch, not one per example: {space.unsplit}"] if space.unsplit else []
    return _loop_notes(caller) + tried + in_weight_space + unsplit


def _loop_notes(caller: Caller) -> list[str]:
    return [
        f"{'draws' if draws else 'samples'} in {_mode(training)} mode run in a loop, "
        f"vmap can't: {obstacle}"
        for (draws, training), obstacle in caller.obstacles.items()
    ]


def _mode(training: bool) -> str:
    return "train" if training else "eval"
