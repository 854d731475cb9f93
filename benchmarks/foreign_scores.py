"""Detection of out-of-distribution images by every score of uncertainty, and by feature distance.

    python -m benchmarks.foreign_scores [--smoke] [--out benchmarks/results/foreign_scores.json]

LeNet-5 with tacit's default noise on 10,000 images of MNIST or Fashion-MNIST, trained as in the
study of the default; the other of the two and Quick, Draw! are foreign.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import tacit
from benchmarks.active_learning import noise
from benchmarks.measure import save
from tacit.data import Images, Splits
from tacit.inference import feature_distance
from tacit.models import LeNet5

SEEDS, TRAIN, TEST, EPOCHS, LR = 3, 10_000, 2_000, 40, 0.05
LAYERS = {"distance": None, "distance_convolution": "3"}  # last hidden layer, second convolution


def some(images: Images, size: int) -> Images:
    """Return images at random, the same every time."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen: Images = images[order[:size]]
    return chosen


def problems(smoke: bool) -> dict[str, tuple[Splits, dict[str, Images]]]:
    """Return data by name, with foreign images normalised like them."""
    if smoke:
        generator = torch.Generator().manual_seed(0)
        images = noise(40, generator)
        return {"noise": (Splits(images, images, images), {"noise": noise(40, generator)})}
    mnist, fashion = tacit.data.mnist(), tacit.data.fashion_mnist()
    drawings = tacit.data.quickdraw()
    return {
        "mnist": (mnist, {"fashion_mnist": fashion.test, "quickdraw": drawings}),
        "fashion_mnist": (fashion, {"mnist": mnist.test, "quickdraw": drawings}),
    }


def measure(
    data: Splits, foreign: dict[str, Images], seed: int, epochs: int
) -> dict[str, dict[str, float]]:
    """Train a model; return its metrics against each kind of foreign images."""
    torch.manual_seed(seed)
    model = tacit.variational(LeNet5(), likelihood=tacit.Categorical())
    train, validation, test = data.train[:TRAIN], data.validation[:TEST], some(data.test, TEST)
    tacit.fit(model, train, epochs=epochs, lr=LR, average=0.5, seed=seed, progress=False)
    tacit.calibrate(model, validation, generator=torch.Generator().manual_seed(seed))
    distances = {name: feature_distance(model, train, layer) for name, layer in LAYERS.items()}
    return {
        name: dict(
            tacit.evaluate(
                model,
                test,
                foreign=replace(some(images, TEST), mean=test.mean, std=test.std),
                distance=distances,
                generator=torch.Generator().manual_seed(seed),
            )
        )
        for name, images in foreign.items()
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few steps, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/foreign_scores.json"))
    arguments = parser.parse_args()
    seeds, epochs = (1, 1) if arguments.smoke else (SEEDS, EPOCHS)
    rows: dict[str, Any] = {}
    runs: dict[str, Any] = {}
    for name, (data, foreign) in problems(arguments.smoke).items():
        found = [measure(data, foreign, seed, epochs) for seed in range(seeds)]
        for other in foreign:
            runs[f"{name}, {other}"] = each = [run[other] for run in found]
            keys = [key for key in each[0] if key.startswith("ood") and all(key in r for r in each)]
            rows[f"{name}, {other}"] = {key: mean(run[key] for run in each) for key in keys}
            aurocs = {k: f"{v:.3f}" for k, v in rows[f"{name}, {other}"].items() if "auroc" in k}
            print(name, other, aurocs, flush=True)
    save(arguments.out, seeds=seeds, runs=runs, rows=rows)


if __name__ == "__main__":
    main()
