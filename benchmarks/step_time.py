"""Cost of a training step, a sampled prediction and memory, relative to the plain network.

python -m benchmarks.step_time [--smoke] [--out benchmarks/results/step_time.json]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from benchmarks.measure import save, show
from tacit.calling import Variational
from tacit.models import MLP, LeNet5, ResNet18, ResNet34
from tacit.studies.timing import interleaved_seconds, ratio, repeated, training_bytes
from tacit.training.optim.noise_basis import block_draws

RANKS = (10, 20)  # of the first and the last layer
DRAWS = 8
SEED = 0
PROCESSES = 5
# glibc returns freed memory to the system and asks for it again in the next step: page faults then
# take between 10 and 50 % of a step of LeNet-5, differently in each process.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "100000000", "MALLOC_TRIM_THRESHOLD_": "1000000000"}
DEFAULT = ", the default: relative noise, a draw for each example"
DROPOUT = ", plain network with torch's dropout in the same layers"
FUSED = ", plain network with torch's fused SGD"  # tacit.SGD uses it too


@dataclass(frozen=True)
class Case:
    """A network to train, and the goal for its ratio to the plain network."""

    make_net: Callable[[], nn.Module]
    batch: tuple[int, ...]
    repeats: int  # in each process
    goal: float
    burst: int = 1  # steps timed together: see `repeated`


CASES = {
    "LeNet-5, batch 128": Case(LeNet5, (128, 1, 28, 28), 20, 1.05, 10),
    "ResNet-18 GroupNorm, batch 16": Case(ResNet18, (16, 3, 32, 32), 5, 1.03),
    "MLP 784-512-512-10, batch 128": Case(
        partial(MLP, 784, (512, 512), 10), (128, 784), 5, 1.5, block_draws(max(RANKS))
    ),
    "MLP 64-128-128-10, batch 64": Case(
        partial(MLP, 64, (128, 128), 10), (64, 64), 5, 3.0, block_draws(max(RANKS))
    ),
}


def variational(net: nn.Module, draws: int = 1) -> nn.Module:
    """Return the network with low-rank covariances in its first and last layer."""
    layers = [name for name, part in net.named_modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    first, last = (tacit.LowRank(rank) for rank in RANKS)
    return tacit.variational(net, {layers[0]: first, layers[-1]: last}, draws=draws)


def with_dropout(net: nn.Module, rate: float) -> nn.Module:
    """Return the network with dropout where the default has noise: before all layers but one."""
    layers = [part for part in net.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    for layer in layers[1:]:
        layer.register_forward_pre_hook(lambda layer, x: F.dropout(x[0], rate, layer.training))
    return net


def training_steps(case: Case) -> dict[str, Callable[[], None]]:
    """Return training steps of the plain and of variational networks, on the same batch."""
    x, y = torch.randn(case.batch), torch.randint(10, case.batch[:1])
    models = {
        "plain": case.make_net(),
        "": variational(case.make_net()),
        f", draws={DRAWS}": variational(case.make_net(), DRAWS),
        f", all layers, rank 3, draws={DRAWS}": tacit.variational(
            case.make_net(), rank=3, draws=DRAWS
        ),
        DEFAULT: tacit.variational(case.make_net()),
        DROPOUT: with_dropout(case.make_net(), 0.1),
    }
    steps = {name: training_step(model, x, y) for name, model in models.items()}
    steps[FUSED] = training_step(case.make_net(), x, y, fused=True)
    return {name: repeated(step, case.burst) for name, step in steps.items()}


def training_step(model: nn.Module, x: Tensor, y: Tensor, **plain: bool) -> Callable[[], None]:
    """Return a training step, with tacit.SGD or, for a plain network, torch's SGD."""
    optimizer: torch.optim.Optimizer
    if isinstance(model, Variational):
        optimizer = tacit.SGD(model, lr=1e-3, momentum=0.9, deferred=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, **plain)

    def step() -> None:
        loss = _loss(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def case_seconds(name: str, repeats: int | None = None) -> dict[str, list[float]]:
    """Return the seconds of training steps of a case, measured interleaved."""
    torch.manual_seed(SEED)
    case = CASES[name]
    return interleaved_seconds(training_steps(case), repeats or case.repeats, name)


def in_fresh_processes(
    measure: Callable[[Any], dict[str, list[float]]], argument: Any
) -> dict[str, list[float]]:
    """Return the seconds measured by several processes, pooled.

    The memory layout of a process changes a ratio by a few percent.
    """
    os.environ.update(KEEP_MEMORY)
    found: dict[str, list[float]] = {}
    with get_context("spawn").Pool(1, maxtasksperchild=1) as processes:
        for seconds in processes.imap(measure, [argument] * PROCESSES):
            for kind, values in seconds.items():
                found.setdefault(kind, []).extend(values)
    return found


def last_layer_prediction(samples: int = 32, batch: int = 8) -> dict[str, Callable[[], None]]:
    """Return a plain forward pass of ResNet-18, and a sampled one, only the last layer random."""
    x, net = torch.randn(batch, 3, 32, 32), ResNet18().eval()
    model = tacit.variational(net, {"fc": tacit.LowRank(20)}).eval()

    @torch.inference_mode()
    def plain() -> None:
        net(x)

    @torch.inference_mode()
    def sampled() -> None:
        model(x, samples=samples)

    return {"plain": plain, "tacit": sampled}


def memory(
    make_net: Callable[[], nn.Module], wrap: Callable[[nn.Module], nn.Module]
) -> dict[str, float]:
    """Return the bytes of a training step, plain and variational, with torch's SGD."""
    x, y = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    nets = {"plain": make_net(), "tacit": wrap(make_net())}
    counted = {name: training_bytes(net, partial(_loss, net, x, y)) for name, net in nets.items()}
    return {**counted, "ratio": counted["tacit"] / counted["plain"]}


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def main() -> None:
    """Measure, print the table and save the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few repeats, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/step_time.json"))
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    rows: dict[str, dict[str, float]] = {}
    for name, case in CASES.items():
        few = arguments.smoke
        seconds = case_seconds(name, 1) if few else in_fresh_processes(case_seconds, name)
        for kind in [kind for kind in seconds if kind != "plain"]:
            goal = {} if kind else {"goal": case.goal}
            rows[f"training step, {name}{kind}"] = {
                **ratio(seconds, kind, "plain", case.burst),
                **goal,
            }
    count = 1 if arguments.smoke else 60
    seconds = interleaved_seconds(last_layer_prediction(), count, "prediction")
    name = "prediction, ResNet-18, last layer, 32 samples, batch 8"
    rows[name] = {**ratio(seconds, "tacit", "plain"), "goal": 1.3}
    counted = memory(ResNet18, variational)
    rows["memory of a step, ResNet-18, batch 16"] = {**counted, "goal": 1.05}
    counted = memory(ResNet34, tacit.variational)
    rows["memory of a step, ResNet-34, batch 16, the default"] = {**counted, "goal": 1.1}
    save(arguments.out, ranks=RANKS, seed=SEED, rows=rows)
    show(rows)


if __name__ == "__main__":
    main()
