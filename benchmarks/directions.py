"""Do networks learn the same with noise whose directions take turns as with independent noise?

python -m benchmarks.directions [--smoke] [--out benchmarks/results/directions.json]

An MLP 784-64-10 with both layers random on 10,000 images of MNIST, from the same seeds by tacit.SGD
and by torch's SGD, whose draws are independent; 32 samples on 5,000 test images.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from benchmarks.measure import save
from tacit.models import MLP
from tacit.training.optim import eligibility

# Ranks of the layers, draws in a step. With 2 and 64 two directions are kept for 128 draws.
CHOICES = (((2, 2), 1), ((10, 10), 1), ((64, 64), 1), ((2, 64), 1), ((16, 16), 4))
SEEDS, STEPS, BATCH, LR, SAMPLES = 8, 1000, 64, 0.01, 32
TRAIN, TEST, CLASSES = 10_000, 5_000, 10
Data = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
Scores = dict[str, float]


def images() -> Data:
    """Return images as rows with their labels, to train and to test on."""
    found = tacit.data.mnist()
    parts = found.train[:TRAIN], found.test[:TEST]
    train, test = ((part.normalised().flatten(1), part.targets.long()) for part in parts)
    return train, test


def unknown_images() -> Data:
    """Return noise instead, for a short run."""
    train, test = ((torch.randn(BATCH, 784), torch.randint(CLASSES, (BATCH,))) for _ in range(2))
    return train, test


def scores(
    data: Data, ranks: tuple[int, int], draws: int, seed: int, turns: bool, steps: int
) -> Scores:
    """Train a network and return how good it is."""
    torch.manual_seed(seed)
    (x, y), (test_x, test_y) = data
    net = MLP(784, (64,), CLASSES)
    layers = [name for name, part in net.named_modules() if isinstance(part, nn.Linear)]
    where = {name: tacit.LowRank(rank) for name, rank in zip(layers, ranks, strict=True)}
    model = tacit.variational(net, where, draws=draws)
    optimizer: torch.optim.Optimizer
    if turns:
        optimizer = tacit.SGD(model, LR, momentum=0.9)
    else:
        optimizer = torch.optim.SGD(model.param_groups(LR), LR, momentum=0.9)
    shuffled = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = torch.randint(len(x), (BATCH,), generator=shuffled)
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    if turns != (model.lazy is not None):
        raise RuntimeError("expected directions that take turns under tacit.SGD, and only there")
    with torch.no_grad():
        log_probs = model(test_x, samples=SAMPLES).log_softmax(-1).logsumexp(0)
    log_probs -= math.log(SAMPLES)
    error = (log_probs.argmax(-1) != test_y).double().mean()
    trace = sum(d.trace().item() for d in model.distributions.values())
    return {"error": error.item(), "nll": F.nll_loss(log_probs, test_y).item(), "trace": trace}


def compared(
    data: Data, ranks: tuple[int, int], draws: int, seeds: int, steps: int
) -> dict[str, Scores]:
    """Return the means of both over seeds, their difference, and its standard error."""
    pairs = [
        [scores(data, ranks, draws, seed, turns, steps) for turns in (True, False)]
        for seed in range(seeds)
    ]
    both = list(zip(*pairs, strict=True))
    found = {}
    for name in both[0][0]:
        ours, others = ([one[name] for one in kind] for kind in both)
        differences = [a - b for a, b in zip(ours, others, strict=True)]
        found[name] = {
            "turns": statistics.mean(ours),
            "independent": statistics.mean(others),
            "difference": statistics.mean(differences),
            "standard_error": statistics.stdev(differences) / math.sqrt(seeds),
        }
    return found


def main() -> None:
    """Train, print the table and save the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few steps: checks that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/directions.json"))
    arguments = parser.parse_args()
    eligibility.WIDE = eligibility.SMALL = 0  # also for layers that are too small for it to pay
    torch.manual_seed(0)
    data, seeds, steps = (images(), SEEDS, STEPS)
    if arguments.smoke:
        data, seeds, steps = unknown_images(), 2, 3
    learned = {}
    table = Table(
        "", "turns", "independent", "difference", title="Noise whose directions take turns"
    )
    for ranks, draws in CHOICES:
        name = f"ranks {ranks[0]} and {ranks[1]}, {draws} draw{'s' if draws > 1 else ''}"
        learned[name] = compared(data, ranks, draws, seeds, steps)
        for score, row in learned[name].items():
            table.add_row(
                f"{name}, {score}",
                f"{row['turns']:.4f}",
                f"{row['independent']:.4f}",
                f"{row['difference']:+.4f} ± {row['standard_error']:.4f}",
            )
    save(arguments.out, seeds=seeds, steps=steps, learned=learned)
    Console().print(table)


if __name__ == "__main__":
    main()
