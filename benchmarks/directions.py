"""Do networks learn equally well when noise directions take turns as with independent noise?

python -m benchmarks.directions [--smoke] [--out benchmarks/results/directions.json]

An MLP 784-64-10 with both layers random is trained on 10,000 images of MNIST from the same seeds
with tacit.SGD and with torch's SGD, whose draws are independent, and evaluated with 32 samples on
5,000 test images.
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

# Ranks of the layers, draws per step. With ranks 2 and 64, two directions serve 128 draws.
CHOICES = (((2, 2), 1), ((10, 10), 1), ((64, 64), 1), ((2, 64), 1), ((16, 16), 4))
SEEDS, STEPS, BATCH, LR, SAMPLES = 8, 1000, 64, 0.01, 32
TRAIN, TEST, CLASSES = 10_000, 5_000, 10
Data = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
Scores = dict[str, float]


def images() -> Data:
    """Return training and test images, flattened, with their labels."""
    found = tacit.data.mnist()
    parts = found.train[:TRAIN], found.test[:TEST]
    train, test = ((part.normalised().flatten(1), part.targets.long()) for part in parts)
    return train, test


def random_images() -> Data:
    """Return noise in place of images, for a smoke test."""
    train, test = ((torch.randn(BATCH, 784), torch.randint(CLASSES, (BATCH,))) for _ in range(2))
    return train, test


def scores(
    data: Data, ranks: tuple[int, int], draws: int, seed: int, turns: bool, steps: int
) -> Scores:
    """Train a network; return test error, NLL and the trace of the covariance."""
    torch.manual_seed(seed)
    (x, y), (test_x, test_y) = data
    net = MLP(784, (64,), CLASSES)
    layers = [name for name, part in net.named_modules() if isinstance(part, nn.Linear)]
    where = {name: tacit.LowRank(rank) for name, rank in zip(layers, ranks, strict=True)}
    model = tacit.variational(net, where, draws=draws)
    optimizer: torch.optim.Optimizer
    if turns:
        optimizer = tacit.SGD(model, LR, momentum=0.9, deferred=True)
    else:
        optimizer = torch.optim.SGD(model.param_groups(LR), LR, momentum=0.9)
    shuffled = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = torch.randint(len(x), (BATCH,), generator=shuffled)
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    if turns != (isinstance(optimizer, tacit.SGD) and optimizer.defers):
        raise RuntimeError("expected deferred updates with tacit.SGD, and only there")
    with torch.no_grad():
        log_probs = model(test_x, samples=SAMPLES).log_softmax(-1).logsumexp(0)
    log_probs -= math.log(SAMPLES)
    error = (log_probs.argmax(-1) != test_y).double().mean()
    trace = sum(d.trace().item() for d in model.distributions.values())
    return {"error": error.item(), "nll": F.nll_loss(log_probs, test_y).item(), "trace": trace}


def compared(
    data: Data, ranks: tuple[int, int], draws: int, seeds: int, steps: int
) -> dict[str, Scores]:
    """Return the means over seeds of both optimizers, their difference and its standard error."""
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
    """Train, print the table and save the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few steps, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/directions.json"))
    arguments = parser.parse_args()
    eligibility.WIDE = eligibility.SMALL = 0  # defer even where it doesn't pay off
    torch.manual_seed(0)
    data, seeds, steps = (images(), SEEDS, STEPS)
    if arguments.smoke:
        data, seeds, steps = random_images(), 2, 3
    learned = {}
    table = Table(
        "", "turns", "independent", "difference", title="Noise directions that take turns"
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
