"""Active learning: accuracy by number of labels, for ways of choosing the inputs to label.

    python -m benchmarks.active_learning [--smoke] [--out benchmarks/results/active_learning.json]

Fashion-MNIST with LeNet-5 and tacit's default noise. Each seed has its own pool, its own first
labels, shared by all ways, and its own initial weights; the network is trained from scratch after
each step. Differences to a random choice are paired by seed.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import tacit
from benchmarks.measure import save
from tacit.calling import Variational
from tacit.data import Images
from tacit.models import LeNet5

WAYS: dict[str, dict[str, Any]] = {
    "random": {"by": "random"},
    "entropy": {"by": "entropy"},
    "margin": {"by": "margin"},
    "mutual_information": {"by": "mutual_information"},
    "power_mutual_information": {"by": "mutual_information", "power": 1.0},
}
LABELS: tuple[int, ...] = (60, 100, 150, 200, 300, 400, 500)
POOL, TEST, SEEDS = 10_000, 2_000, 8
STEPS, BATCH, LR, AVERAGE = 800, 32, 0.02, 0.5
SAMPLES = 16  # functions that score the pool


def noise(size: int, generator: torch.Generator) -> Images:
    """Return noise in place of images, for a smoke test."""
    pixels = torch.randint(256, (size, 1, 28, 28), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.arange(size) % 10)


def train(images: Images, steps: int, seed: int) -> Variational:
    """Return a model trained from scratch, by the same number of steps for any number of images."""
    torch.manual_seed(seed)
    model = tacit.variational(LeNet5(), likelihood=tacit.Categorical())
    epochs = math.ceil(steps / math.ceil(len(images) / BATCH))
    tacit.fit(
        model, images, epochs=epochs, lr=LR, batch_size=BATCH, average=AVERAGE, seed=seed,
        progress=False,
    )  # fmt: skip
    return model


def learn(
    way: dict[str, Any], pool: Images, test: Images, counts: tuple[int, ...], steps: int, seed: int
) -> list[float]:
    """Return the accuracy on test images for each number of labels."""
    generator = torch.Generator().manual_seed(seed)
    rest = torch.randperm(len(pool), generator=generator)  # indices that have no label yet
    known, rest = rest[: counts[0]], rest[counts[0] :]
    found = []
    for count in (*counts[1:], None):
        model = train(pool[known], steps, seed)
        found.append(tacit.evaluate(model, test, generator=generator)["accuracy"])
        if count is None:
            return found
        chosen = tacit.acquire(
            model, pool[rest], count - len(known), samples=SAMPLES, generator=generator, **way
        )
        left = torch.ones(len(rest), dtype=torch.bool)
        left[chosen] = False
        known, rest = torch.cat([known, rest[chosen]]), rest[left]
    raise AssertionError("the last count is None")


def summary(accuracies: dict[str, list[list[float]]], counts: tuple[int, ...]) -> dict[str, Any]:
    """Return mean accuracies, and paired differences to random with their standard errors."""
    found = {}
    for way, runs in accuracies.items():
        own, random = (torch.tensor(r, dtype=torch.float64) for r in (runs, accuracies["random"]))
        # The first step is the same for all ways.
        gain, area = (own - random)[:, 1:], (own - random)[:, 1:].mean(1)
        found[way] = {
            "accuracy": dict(zip(map(str, counts), own.mean(0).tolist(), strict=True)),
            "gain": dict(zip(map(str, counts[1:]), gain.mean(0).tolist(), strict=True)),
            "error": dict(zip(map(str, counts[1:]), error(gain).tolist(), strict=True)),
            "mean_gain": area.mean().item(),
            "mean_error": error(area).item(),
        }
    return found


def error(values: Tensor) -> Tensor:
    """Return the standard error of the mean over seeds; 0 for a single seed."""
    found: Tensor = values.std(0, correction=0) / max(1, len(values) - 1) ** 0.5
    return found


def show(rows: dict[str, Any]) -> None:
    """Print accuracies by number of labels, and the mean gain over random."""
    counts = next(iter(rows.values()))["accuracy"]
    table = Table("way", *counts, "mean gain", title="Accuracy by number of labels, %")
    for way, row in rows.items():
        cells = [f"{100 * row['accuracy'][count]:.1f}" for count in counts]
        gain = f"{100 * row['mean_gain']:+.1f} ± {100 * row['mean_error']:.1f}"
        table.add_row(way, *cells, gain)
    Console().print(table)


def main() -> None:
    """Measure, print and save after each seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few steps, to check that it runs")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/active_learning.json"))
    arguments = parser.parse_args()
    counts, steps, seeds = LABELS, STEPS, arguments.seeds
    if arguments.smoke:
        counts, steps, seeds = (12, 16, 20), 2, 1
    accuracies: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        if arguments.smoke:
            train_images, test = noise(60, generator), noise(20, generator)
        else:
            data = tacit.data.fashion_mnist()
            train_images, test = data.train, data.test[:TEST]
        pool = train_images[torch.randperm(len(train_images), generator=generator)[:POOL]]
        for way, settings in WAYS.items():
            accuracies[way].append(learn(settings, pool, test, counts, steps, seed))
            print(seed, way, [f"{a:.3f}" for a in accuracies[way][-1]], flush=True)
        save(
            arguments.out,
            settings={
                "steps": steps, "batch": BATCH, "lr": LR, "average": AVERAGE, "samples": SAMPLES,
                "pool": len(pool), "test": len(test), "seeds": seed + 1,
            },
            accuracies=accuracies,
            rows=summary(accuracies, counts),
        )  # fmt: skip
    show(summary(accuracies, counts))


if __name__ == "__main__":
    main()
