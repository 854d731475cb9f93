"""What `print(model)` shows of a variational model."""

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
    """Return which layers are random, what that adds, and which calls can't be vectorised."""
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
    for (cut, training), obstacle in caller.obstacles.items():
        kind = f"{'draws' if cut else 'samples'} in {'train' if training else 'eval'} mode"
        lines.append(f"  {kind} run in a loop, vmap can't: {obstacle}")
    return "\n".join(lines)
