"""Learning-rate transfer: is the best learning rate of a small network also good for large ones?"""

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
from tacit.calling import Variational
from tacit.scaling.parametrization import Parametrization
from tacit.studies.plots import plot_learning_rates
from tacit.studies.supervision import Data, Loss, check_pair, loss_for
from tacit.studies.width.networks import check_widths_differ, made_net
from tacit.training.optim.by_name import make_optimizer

GRID = tuple(2.0**power for power in range(-10, 1))


@dataclass(frozen=True)
class Trial:
    """One training run.

    Args:
        width: Width of the network.
        lr: Base learning rate, before the parametrization's scaling.
        seed: Seed of initialization, batches and draws.
        loss: Validation loss after training; infinite if training diverged.
    """

    width: int
    lr: float
    seed: int
    loss: float


@dataclass(frozen=True)
class LearningRateTransfer:
    """Result of `transfer_learning_rate`.

    Args:
        trials: All training runs.
        small: Width at which the learning rate was tuned.
        tolerance: Largest `excess` at which the learning rate counts as transferred.

    Examples:
        >>> losses = {(64, 0.1): 0.5, (64, 0.2): 0.7, (256, 0.1): 0.42, (256, 0.2): 0.40}
        >>> trials = tuple(Trial(width, lr, 0, loss) for (width, lr), loss in losses.items())
        >>> found = LearningRateTransfer(trials, small=64, tolerance=0.1)
        >>> found.lr, round(found.excess(256), 2), found.transferred
        (0.1, 0.05, True)
    """

    trials: tuple[Trial, ...]
    small: int
    tolerance: float

    @property
    def widths(self) -> list[int]:
        """The widths in increasing order."""
        return sorted({trial.width for trial in self.trials})

    @property
    def grid(self) -> list[float]:
        """The learning rates tried, in increasing order."""
        return sorted({trial.lr for trial in self.trials})

    def loss(self, width: int, lr: float) -> float:
        """Return the validation loss after training, averaged over seeds."""
        return statistics.fmean(
            trial.loss for trial in self.trials if (trial.width, trial.lr) == (width, lr)
        )

    def best(self, width: int) -> float:
        """Return the learning rate with the lowest loss at a width."""
        return min(self.grid, key=lambda lr: self.loss(width, lr))

    @property
    def lr(self) -> float:
        """The best learning rate of the small network, which is transferred."""
        return self.best(self.small)

    def excess(self, width: int) -> float:
        """Return the relative excess loss of the transferred learning rate at a width.

        0.1 means a loss 10 % above that of the best learning rate for this width.
        """
        best = self.loss(width, self.best(width))
        if not math.isfinite(best):
            return math.inf
        lost = self.loss(width, self.lr) - best
        return lost / abs(best) if lost else 0.0

    @property
    def at_edge(self) -> list[int]:
        """The widths whose best learning rate is at an edge of the grid, so may lie outside it."""
        edges = (self.grid[0], self.grid[-1])
        return [width for width in self.widths if self.best(width) in edges]

    @property
    def transferred(self) -> bool:
        """Whether the excess is within the tolerance at every width."""
        return all(self.excess(width) <= self.tolerance for width in self.widths)

    def __str__(self) -> str:
        if not math.isfinite(self.loss(self.small, self.lr)):
            return f"all runs of width {self.small} diverged: try smaller learning rates"
        verdict = "transfers" if self.transferred else "does not transfer"
        lines = [f"the learning rate {self.lr:.4g} {verdict} from width {self.small}"]
        for width in self.widths:
            best = self.best(width)
            lines.append(
                f"  width {width:<6} best {best:<9.4g} loss {self.loss(width, best):.4g}, "
                f"with {self.lr:.4g} {self.loss(width, self.lr):.4g}: "
                f"{100 * self.excess(width):.1f} % more"
            )
        if self.at_edge:
            widths = ", ".join(map(str, self.at_edge))
            lines.append(
                f"  best rate at the edge of the grid for width {widths}: try a wider grid"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON; None for numbers that are not finite."""
        return {
            "small": self.small,
            "lr": self.lr,
            "tolerance": self.tolerance,
            "transferred": self.transferred,
            "best": {str(width): self.best(width) for width in self.widths},
            "excess": {
                str(width): checks.finite_or_none(self.excess(width)) for width in self.widths
            },
            "at_edge": self.at_edge,
            "trials": [
                {name: checks.finite_or_none(value) for name, value in asdict(trial).items()}
                for trial in self.trials
            ],
        }

    def plot(self, path: str | Path, title: str = "") -> None:
        """Plot the loss against the learning rate, one line per width; requires matplotlib.

        Args:
            path: File to write; its suffix determines the format.
            title: Title of the figure.
        """
        plot_learning_rates({title: self.to_dict()}, path)


def transfer_learning_rate(
    make_net: Callable[[int], nn.Module],
    data: Data,
    *,
    small: int,
    large: int | Sequence[int],
    grid: Sequence[float] = GRID,
    validation: Data | None = None,
    parametrization: Parametrization | None = None,
    loss: Loss | None = None,
    optimizer: str = "sgd",
    steps: int = 200,
    batch_size: int = 64,
    seeds: int = 1,
    samples: int = 8,
    tolerance: float = 0.25,
    progress: bool = True,
    **settings: Any,
) -> LearningRateTransfer:
    """Tune the learning rate of a small network and test whether it suits larger ones.

    Every width is trained with every learning rate, to measure the loss of the transferred rate
    against the best one. Do this once with few steps; afterwards tune only the small network.

    Args:
        make_net: Function from a width to an initialized network, plain or variational. The global
            random seed is set before each call.
        data: Inputs and targets to train on, examples along the first axis.
        small: Width to tune at.
        large: Width or widths to transfer to.
        grid: Base learning rates to try, before the parametrization's scaling.
        validation: Inputs and targets for the reported loss; by default the training data.
        parametrization: Parametrization that sets the learning rates of a plain network; a
            variational model has its own.
        loss: Function of outputs and targets; by default cross-entropy for integer targets and
            squared error otherwise.
        optimizer: Name of the optimizer: "sgd", "adam", "adamw", ...
        steps: Number of training steps per run; the learning rate follows a cosine schedule to 0.
        batch_size: Examples per step.
        seeds: Number of runs per width and learning rate.
        samples: Number of sampled functions for the validation loss of a variational model.
        tolerance: Largest `LearningRateTransfer.excess` that passes. Losses of single runs are
            noisy: raise `seeds` for a small tolerance.
        progress: Whether to show a progress bar.
        **settings: Further arguments of the optimizer, e.g. `momentum=0.9`.

    Examples:
        >>> import tacit, torch
        >>> from torch import nn
        >>> mup = tacit.MaximalUpdate()
        >>> def make_net(width):
        ...     net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
        ...     tacit.initialize(net, mup)
        ...     return tacit.variational(net, ["2"], rank=2, parametrization=mup)
        >>> x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        >>> found = tacit.transfer_learning_rate(
        ...     make_net, (x, x.prod(1, keepdim=True)), small=8, large=32, steps=20,
        ...     grid=[1e-3, 1e-2, 1e-1], progress=False,
        ... )
        >>> found.widths, found.lr in found.grid
        ([8, 32], True)
    """
    data = check_pair("data", data)
    validation = data if validation is None else check_pair("validation", validation)
    widths = [checks.positive_integer("small", small), *_large(large)]
    if len(set(widths)) != len(widths):
        raise ValueError(f"large: expected widths other than {small}, each once; received {large}.")
    rates = sorted({checks.positive_number("grid", lr) for lr in grid})
    if len(rates) < 2:
        raise ValueError(f"grid: expected at least two learning rates, received {grid}.")
    loss = loss or loss_for(data[1])
    steps = checks.positive_integer("steps", steps)
    batch_size = min(checks.positive_integer("batch_size", batch_size), len(data[0]))
    seeds = checks.positive_integer("seeds", seeds)
    samples = checks.positive_integer("samples", samples)
    tolerance = checks.positive_number("tolerance", tolerance)
    runs = [(width, lr, seed) for width in widths for lr in rates for seed in range(seeds)]
    trials = []
    with torch.random.fork_rng():
        check_widths_differ(make_net, *widths[:2])
        for width, lr, seed in track(runs, description="learning rates", disable=not progress):
            torch.manual_seed(seed)
            net = made_net(make_net, width)
            stepper = make_optimizer(
                net, lr, optimizer, parametrization=parametrization, **settings
            )
            # The same batches at every width, however many numbers the initialization drew.
            torch.manual_seed(seed + 2**32)
            finite = _train(net, stepper, data, loss, steps, batch_size)
            final = _loss(net, validation, loss, samples) if finite else math.inf
            trials.append(Trial(width, lr, seed, final))
    return LearningRateTransfer(tuple(trials), small, tolerance)


def _large(large: int | Sequence[int]) -> list[int]:
    widths = large if isinstance(large, Sequence) else [large]
    if not widths:
        raise ValueError("large: expected at least one width.")
    return [checks.positive_integer("large", width) for width in widths]


def _train(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    loss: Loss,
    steps: int,
    batch_size: int,
) -> bool:
    """Train; return whether all training losses were finite."""
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order = torch.empty(0, dtype=torch.long)
    net.train()
    for _ in range(steps):
        if len(order) < batch_size:
            order = torch.randperm(len(data[0]))
        batch, order = order[:batch_size], order[batch_size:]
        value = loss(net(data[0][batch]), data[1][batch])
        if not value.isfinite():
            return False
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
    return True


@torch.no_grad()
def _loss(net: nn.Module, data: Data, loss: Loss, samples: int) -> float:
    """Return the loss, averaged over sampled functions; infinite if it is not finite."""
    net.eval()
    x, y = data
    outputs: Tensor
    if isinstance(net, Variational):
        generator = torch.Generator(device=next(net.parameters()).device).manual_seed(0)
        outputs = net(x, samples=samples, generator=generator)
    else:
        outputs = net(x)[None]
    value = torch.stack([loss(output, y) for output in outputs]).mean().item()
    return value if math.isfinite(value) else math.inf
