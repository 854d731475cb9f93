"""How the cost of a training step grows with rank, width, samples and draws.

python -m benchmarks.scaling [--smoke] [--out benchmarks/results/scaling.json]

Every curve is a ratio to the plain network, measured in the same run.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from benchmarks.measure import save, show
from tacit.calling import Variational
from tacit.models import MLP, LeNet5
from tacit.studies.timing import interleaved_seconds, ratio, repeated
from tacit.training.optim.noise_basis import block_draws

RANKS = (1, 2, 4, 8, 16, 32, 64)
WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096)
COUNTS = (1, 2, 4, 8, 16, 32, 64)
BATCH, CLASSES, SEED = 128, 10, 0
OURS, TORCHS = "tacit.SGD", "torch.optim.SGD"

Step = Callable[[], None]
Curve = dict[str, dict[str, float]]  # position on the axis -> ratio with its interval


def ends(net: nn.Module, rank: int) -> dict[str, tacit.LowRank]:
    """Return low-rank covariances for the first and the last layer, as in the paper."""
    layers = [name for name, part in net.named_modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    return {layers[0]: tacit.LowRank(rank), layers[-1]: tacit.LowRank(rank)}


def hidden(net: nn.Module, rank: int) -> dict[str, tacit.LowRank]:
    """Return a low-rank covariance for the square layer of an MLP."""
    layers = [name for name, part in net.named_modules() if isinstance(part, nn.Linear)]
    return {layers[1]: tacit.LowRank(rank)}


def step(model: nn.Module, x: Tensor, optimizer: str = OURS, **call: int) -> Step:
    """Return a training step on one batch."""
    y = torch.randint(CLASSES, (len(x),))
    stepper: torch.optim.Optimizer
    if isinstance(model, Variational) and optimizer == OURS:
        stepper = tacit.SGD(model, lr=1e-3, momentum=0.9, deferred=True)
    else:
        groups = model.param_groups(1e-3) if isinstance(model, Variational) else model.parameters()
        stepper = torch.optim.SGD(groups, lr=1e-3, momentum=0.9)

    def run() -> None:
        outputs = model(x, **call).reshape(-1, CLASSES)
        loss = F.cross_entropy(outputs, y.repeat(len(outputs) // len(x)))
        stepper.zero_grad()
        loss.backward()
        stepper.step()

    return run


def curve(
    steps: Mapping[str, Step], plain: Step, repeats: int, label: str, burst: int = 1
) -> Curve:
    """Return the ratios of steps to the plain one, timed in interleaved bursts."""
    runs = {name: repeated(run, burst) for name, run in {"plain": plain, **steps}.items()}
    seconds = interleaved_seconds(runs, repeats, label)
    return {name: ratio(seconds, name, "plain", burst) for name in steps}


def over_rank(repeats: int, ranks: tuple[int, ...] = RANKS) -> dict[str, Curve]:
    """Cost against the rank of the first and the last layer of MLP 784-512-512-10."""
    net, x = MLP(784, (512, 512), CLASSES), torch.randn(BATCH, 784)
    curves: dict[str, Curve] = {OURS: {}, TORCHS: {}}
    for rank in ranks:
        for optimizer, burst in ((OURS, block_draws(rank)), (TORCHS, 1)):
            steps = {str(rank): step(_model(net, ends(net, rank)), x, optimizer)}
            plain = step(_copy(net), x)
            curves[optimizer] |= curve(steps, plain, repeats, f"rank {rank}", burst)
    return curves


def over_width(repeats: int, widths: tuple[int, ...] = WIDTHS) -> dict[str, Curve]:
    """Cost against the width of MLP 784-W-W-10 with a hidden layer of rank 10."""
    curves: dict[str, Curve] = {OURS: {}, TORCHS: {}}
    for width in widths:
        net, x = MLP(784, (width, width), CLASSES), torch.randn(BATCH, 784)
        count = repeats if width < 2048 else max(1, repeats // 4)
        for optimizer, burst in ((OURS, block_draws(10)), (TORCHS, 1)):
            steps = {str(width): step(_model(net, hidden(net, 10)), x, optimizer)}
            plain = step(_copy(net), x)
            curves[optimizer] |= curve(steps, plain, count, f"width {width}", burst)
    return curves


def over_counts(repeats: int, counts: tuple[int, ...] = COUNTS) -> dict[str, Curve]:
    """Cost against samples and draws, of LeNet-5 with its first and last layer random."""
    net, x = LeNet5(), torch.randn(BATCH, 1, 28, 28)
    curves = {}
    for kind in ("samples", "draws"):
        steps = {
            str(count): step(_model(net, ends(net, 10)), x, OURS, **{kind: count})
            for count in counts
        }
        curves[kind] = curve(steps, step(_copy(net), x), repeats, kind)
    return curves


def _model(net: nn.Module, where: dict[str, tacit.LowRank]) -> Variational:
    return tacit.variational(_copy(net), where)


def _copy(net: nn.Module) -> nn.Module:
    return copy.deepcopy(net)


def main() -> None:
    """Measure, print the tables and save the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few repeats, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scaling.json"))
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    few = arguments.smoke
    found = {
        "rank": over_rank(1, RANKS[:1]) if few else over_rank(10),
        "width": over_width(1, WIDTHS[:1]) if few else over_width(10),
        "count": over_counts(1, COUNTS[:2]) if few else over_counts(20),
    }
    save(arguments.out, seed=SEED, curves=found)
    for axis, curves in found.items():
        for name, points in curves.items():
            show(points, f"{axis}: {name}")


if __name__ == "__main__":
    main()
