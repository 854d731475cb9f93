"""Coordinate check: do features move by the same amount at every width?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

from tacit._support import checks
from tacit._support.trees import tensors_in
from tacit.calling import Variational
from tacit.scaling.parametrization import Parametrization
from tacit.studies.plots import plot_coordinates
from tacit.studies.supervision import Data, Loss, check_pair, loss_for
from tacit.studies.width.networks import check_widths_differ, made_net
from tacit.training.optim.by_name import make_optimizer

Features = dict[str, tuple[Tensor, Tensor]]  # layer -> mean and standard deviation over draws


@dataclass(frozen=True)
class Change:
    """Root-mean-square change of the features of a layer since initialization.

    Args:
        layer: Name of the layer whose outputs are the features.
        width: Width of the network.
        seed: Seed of its initialization.
        step: Number of training steps taken.
        mean: Change of the mean of the features over draws of the weights.
        std: Change of their standard deviation over draws; 0 for a plain network.
        start: Root mean square of the mean features at initialization.
    """

    layer: str
    width: int
    seed: int
    step: int
    mean: float
    std: float
    start: float


@dataclass(frozen=True)
class CoordinateCheck:
    """Result of `coordinate_check`.

    Args:
        changes: Changes for all layers, widths, seeds and steps.
        tolerance: Largest absolute slope that passes.

    Examples:
        >>> changes = [Change("fc", width, 0, 1, 10 / width, 0.0, 1.0) for width in (64, 128, 256)]
        >>> check = CoordinateCheck(tuple(changes), tolerance=0.2)
        >>> round(check.slope("fc"), 2), check.holds  # changes shrink like 1 / width
        (-1.0, False)
    """

    changes: tuple[Change, ...]
    tolerance: float

    @property
    def layers(self) -> list[str]:
        """Names of the layers, in the order of the network."""
        return list(dict.fromkeys(change.layer for change in self.changes))

    def slope(self, layer: str, of: str = "mean") -> float:
        """Return the power of the width with which a layer's change grows, at the last step.

        This is the slope of the least-squares line of log change against log width over all seeds;
        NaN if training diverged or the features did not change at all.

        Args:
            layer: Name of the layer.
            of: "mean" or "std".

        Raises:
            ValueError: If the layer or the quantity is unknown.
        """
        if layer not in self.layers or of not in ("mean", "std"):
            expected = f"one of {', '.join(self.layers)} and mean or std"
            raise ValueError(f"slope: expected {expected}; received {layer!r} and {of!r}.")
        last = max(change.step for change in self.changes)
        points = [
            (change.width, getattr(change, of))
            for change in self.changes
            if change.layer == layer and change.step == last
        ]
        if not all(0 < y < math.inf for _, y in points):
            return math.nan
        logs = [(math.log(width), math.log(y)) for width, y in points]
        return statistics.linear_regression(*zip(*logs, strict=True)).slope

    @property
    def holds(self) -> bool:
        """Whether the mean features of every layer move, and equally at every width.

        The standard deviation is reported but not tested: it moves less in wide networks if the
        rank grows with the width.
        """
        return all(abs(self.slope(layer)) <= self.tolerance for layer in self.layers)

    def __str__(self) -> str:
        if any(not math.isfinite(change.mean) for change in self.changes):
            return "training diverged: try a smaller learning rate"
        verdict = "move" if self.holds else "do not move"
        lines = [f"mean features {verdict} equally at every width (tolerance {self.tolerance:g})"]
        width = max(map(len, self.layers))
        for layer in self.layers:
            lines.append(f"  {layer:{width}}  mean {_power(self.slope(layer))}")
            if any(change.std for change in self.changes if change.layer == layer):
                lines[-1] += f"  std {_power(self.slope(layer, 'std'))}"
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON; None for numbers that are not finite."""
        slopes = {
            layer: {of: checks.finite_or_none(self.slope(layer, of)) for of in ("mean", "std")}
            for layer in self.layers
        }
        return {
            "tolerance": self.tolerance,
            "holds": self.holds,
            "slopes": slopes,
            "changes": self._rows(),
        }

    def plot(self, path: str | Path, title: str = "") -> None:
        """Plot the changes against width, one panel per layer and one line per step.

        Requires matplotlib.

        Args:
            path: File to write; its suffix determines the format.
            title: Title of the figure.
        """
        plot_coordinates(self._rows(), path, title)

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {name: checks.finite_or_none(value) for name, value in asdict(change).items()}
            for change in self.changes
        ]


def coordinate_check(
    make_net: Callable[[int], nn.Module],
    widths: Sequence[int],
    data: Data,
    *,
    parametrization: Parametrization | None = None,
    loss: Loss | None = None,
    lr: float = 0.01,
    optimizer: str = "sgd",
    steps: int = 5,
    seeds: int = 3,
    samples: int = 16,
    tolerance: float = 0.25,
    progress: bool = True,
) -> CoordinateCheck:
    """Train a network for a few steps at several widths and measure how far its features move.

    Under the maximal update parametrization the change does not depend on the width; under the
    standard parametrization it grows or vanishes.

    Args:
        make_net: Function from a width to an initialized network, plain or variational. The global
            random seed is set before each call.
        widths: At least two different widths.
        data: One batch: inputs and targets.
        parametrization: Parametrization that sets the learning rates of a plain network; a
            variational model has its own.
        loss: Function of outputs and targets; by default cross-entropy for integer targets and
            squared error otherwise.
        lr: Base learning rate, before the parametrization's scaling.
        optimizer: Name of the optimizer: "sgd", "adam", "adamw", ...
        steps: Number of training steps.
        seeds: Number of networks per width.
        samples: Number of draws of the weights for mean and standard deviation of the features; the
            noise is the same before and after training.
        tolerance: Largest absolute slope of log change against log width that passes.
        progress: Whether to show a progress bar.

    Examples:
        >>> import tacit, torch
        >>> from torch import nn
        >>> def make_net(width):
        ...     net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
        ...     tacit.initialize(net, tacit.MaximalUpdate())
        ...     return net
        >>> x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
        >>> check = tacit.coordinate_check(
        ...     make_net, [64, 256], (x, x.sum(1, keepdim=True)), lr=1e-3, progress=False,
        ...     parametrization=tacit.MaximalUpdate(),
        ... )
        >>> check.holds
        True
    """
    widths = [int(width) for width in widths] if not isinstance(widths, int) else [widths]
    if len(set(widths)) < 2:
        raise ValueError(f"widths: expected at least two different widths, received {widths}.")
    data = check_pair("data", data)
    loss = loss or loss_for(data[1])
    seeds = checks.positive_integer("seeds", seeds)
    samples = checks.positive_integer("samples", samples)
    tolerance = checks.positive_number("tolerance", tolerance)
    runs = [(checks.positive_integer("widths", w), s) for w in widths for s in range(seeds)]
    changes: list[Change] = []
    with torch.random.fork_rng():
        check_widths_differ(make_net, min(widths), max(widths))
        for width, seed in track(runs, description="coordinate check", disable=not progress):
            torch.manual_seed(seed)
            net = made_net(make_net, width).train()
            stepper = make_optimizer(net, lr, optimizer, parametrization=parametrization)
            before = _features(net, data[0], samples)
            for step in range(1, checks.positive_integer("steps", steps) + 1):
                stepper.zero_grad()
                loss(net(data[0]), data[1]).backward()
                stepper.step()
                changes += _changes(before, _features(net, data[0], samples), width, seed, step)
    return CoordinateCheck(tuple(changes), tolerance)


def _power(slope: float) -> str:
    return "does not move" if math.isnan(slope) else f"~ width^{slope:+.2f}"


def _changes(before: Features, after: Features, width: int, seed: int, step: int) -> list[Change]:
    return [
        Change(
            layer,
            width,
            seed,
            step,
            mean=_rms(after[layer][0] - before[layer][0]),
            std=_rms(after[layer][1] - before[layer][1]),
            start=_rms(before[layer][0]),
        )
        for layer in before
    ]


def _rms(tensor: Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


@torch.no_grad()
def _features(net: nn.Module, x: Tensor, samples: int) -> Features:
    """Return mean and standard deviation over draws of the outputs of each layer with weights."""
    module = net.module if isinstance(net, Variational) else net
    # Per module: named_parameters() of the network would list a tied weight only once.
    layers = {
        name
        for name, layer in module.named_modules()
        for tensor, value in layer.named_parameters(recurse=False)
        if value.ndim > 1 and "weight" in tensor
    }
    kept: dict[str, list[Tensor]] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda _, __, output: kept.setdefault(name, []).append(tensors_in(output)[0])

    hooks = [
        layer.register_forward_hook(keep(name))
        for name, layer in module.named_modules()
        if name in layers
    ]
    try:
        _forward(net, x, samples)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: _moments(torch.stack(outputs)) for name, outputs in kept.items()}


def _moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    return outputs.mean(0), outputs.std(0, correction=0)


def _forward(net: nn.Module, x: Tensor, samples: int) -> None:
    """Call a plain network once, or a variational model once per draw of its weights."""
    if not isinstance(net, Variational):
        net(x)
        return
    generator = torch.Generator(device=next(net.parameters()).device).manual_seed(0)
    weights = net.sample(samples, generator=generator)
    for m in range(samples):  # one at a time: hooks cannot keep tensors from inside vmap
        net(x, weights={name: tensor[m] for name, tensor in weights.items()})
