"""The claim `lr-transfer`: under muP the best learning rate is the same at every width.

    python -m tacit.experiments.lr_transfer --out DIR

MLPs with two hidden layers of 32 to 512 units on scikit-learn's digits, low-rank covariances in the
last two layers, Adam, cosine annealing, learning rates from 2^-13 to 2^-4, in the standard
parametrization and in muP with the smallest network as base. The paper has CIFAR-10 and its widths,
128 to 2048; the scale "paper" has the widths only. (With SGD the best rate is 2^-4 or
2^-3 at all of these widths in both parametrizations: no difference to see.)
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.covariance import LowRank
from tacit.data import digits
from tacit.experiments.runner import Scales, run
from tacit.experiments.verdict import Verdict
from tacit.parametrization import MaximalUpdate, Parametrization, Standard
from tacit.plots import plot_learning_rates
from tacit.scaling import initialize
from tacit.transfer import transfer_learning_rate
from tacit.variational import variational

SCALES: Scales = {
    "smoke": {"widths": (16, 32), "powers": (-6, -4), "steps": 3, "seeds": 1},
    "cpu": {},
    "paper": {"widths": (128, 256, 512, 1024, 2048)},
}
MINUTES = {"smoke": 0.1, "cpu": 8, "paper": 120}
CLAIMS = ("lr-transfer",)
TITLES = {"sp": "standard parametrization", "mup": "muP"}


def plain(width: int) -> nn.Module:
    """Return the network: two hidden layers, 64 pixels, 10 classes."""
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def make_model(width: int, *, parametrization: Parametrization, rank: int) -> nn.Module:
    """Return the variational network, low rank in the last two layers."""
    net = plain(width)
    initialize(net, parametrization)
    where = {"2": LowRank(rank), "4": LowRank(rank)}
    return variational(net, where, parametrization=parametrization)


def compute(
    widths: tuple[int, ...] = (32, 64, 128, 256, 512),
    powers: tuple[int, ...] = tuple(range(-13, -3)),
    rank: int = 10,
    steps: int = 300,
    batch_size: int = 64,
    optimizer: str = "adam",
    seeds: int = 2,
) -> dict[str, Any]:
    """Train all widths with all learning rates, in both parametrizations."""
    *parts, validation = digits()
    inputs, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    small, *large = widths
    choices = {"sp": Standard(), "mup": MaximalUpdate(base=plain(small))}
    results = {}
    for name, parametrization in choices.items():
        found = transfer_learning_rate(
            partial(make_model, parametrization=parametrization, rank=rank),
            (inputs, targets),
            small=small,
            large=large,
            grid=[2.0**power for power in powers],
            validation=validation,
            steps=steps,
            batch_size=batch_size,
            seeds=seeds,
            optimizer=optimizer,
        )
        results[name] = found.to_dict()
    return results


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return what the numbers say."""
    largest = max(results["mup"]["best"], key=int)
    losses = {name: found["excess"][largest] for name, found in results.items()}
    decided = all(len(found["best"]) > 2 for found in results.values())
    good = results["mup"]["transferred"] and not results["sp"]["transferred"]
    return [
        Verdict(
            "lr-transfer",
            good if decided else None,
            f"at width {largest} the rate of the smallest width costs "
            + ", ".join(f"{TITLES[name]} {excess:.0%}" for name, excess in losses.items())
            + " of the best loss there",
            f"{results['mup']['tolerance']:.0%} at most at every width under muP, more under SP",
        )
    ]


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw the loss against the learning rate from saved results, a panel per parametrization."""
    panels = {TITLES[name]: found for name, found in results.items()}
    for ending in ("pdf", "png"):
        plot_learning_rates(panels, folder / f"lr_transfer.{ending}")


if __name__ == "__main__":
    run(sys.modules[__name__])
