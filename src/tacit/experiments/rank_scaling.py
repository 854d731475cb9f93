"""The claim `rank-scaling`: with the proposed scaling, training doesn't depend on the rank.

    python -m tacit.experiments.rank_scaling --out DIR

How far the features of MLPs move in a few steps, for ranks from 1 to 64: with S started at R^-1/2
of its scale and the learning rate of S at 1/R of the mean's (SGD), and, for comparison, with the
mean's learning rate.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit.covariance import LowRank
from tacit.experiments.runner import Scales, run
from tacit.experiments.verdict import Verdict
from tacit.parametrization import Entry, MaximalUpdate, group
from tacit.scaling import initialize
from tacit.variational import Variational, variational

SCALES: Scales = {"smoke": {"ranks": (1, 4), "seeds": 1}, "cpu": {}, "paper": {"seeds": 50}}
MINUTES = {"smoke": 0.1, "cpu": 0.5, "paper": 2}
NEEDS = "nothing"
CLAIMS = ("rank-scaling",)
WAYS = {"scaled": "learning rate of S by 1/R", "same": "learning rate of the mean"}
ALIKE, LEAST = 1.5, 4


def compute(
    ranks: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64),
    width: int = 128,
    lr: float = 0.003,
    steps: int = 3,
    seeds: int = 12,
    samples: int = 32,
) -> dict[str, Any]:
    """Train a few steps with every rank; return how far the hidden features move."""
    rows = []
    for way in WAYS:
        for rank in ranks:
            moves = [_moved(way, rank, width, lr, steps, seed, samples) for seed in range(seeds)]
            rows.append({"way": way, "rank": rank, "moves": moves})
    return {"rows": rows}


def _moved(
    way: str, rank: int, width: int, lr: float, steps: int, seed: int, samples: int
) -> float:
    """Return the root mean square by which the last hidden features of the same draws move."""
    torch.manual_seed(seed)
    parametrization = MaximalUpdate()
    net = nn.Sequential(
        nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    initialize(net, parametrization)
    model = variational(net, {"*": LowRank(rank)}, parametrization=parametrization)
    x, y = torch.randn(32, 8), torch.randn(32, 1)
    before = _features(model, x, samples)
    optimizer = torch.optim.SGD(group(_entries(model, way, rank), model, lr))
    for _ in range(steps):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (_features(model, x, samples) - before).square().mean().sqrt().item()


def _entries(model: Variational, way: str, rank: int) -> Iterator[Entry]:
    for entry in model.entries("sgd"):
        undone = rank if way == "same" and entry.part == "factors" else 1
        yield replace(entry, factor=entry.factor * undone)


@torch.no_grad()
def _features(model: Variational, x: Tensor, samples: int) -> Tensor:
    """Return the last hidden features under the same noise each time."""
    weights = model.sample(samples, generator=torch.Generator().manual_seed(0))
    first = F.relu(x @ weights["0.weight"].mT + weights["0.bias"][:, None])
    return F.relu(first @ weights["2.weight"].mT + weights["2.bias"][:, None])


def _spread(results: dict[str, Any], way: str) -> dict[int, float]:
    return {
        row["rank"]: statistics.fmean(row["moves"]) for row in results["rows"] if row["way"] == way
    }


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return what the numbers say."""
    ratios = {}
    for way in WAYS:
        found = {rank: moved for rank, moved in _spread(results, way).items() if rank >= LEAST}
        ratios[way] = max(found.values()) / min(found.values())
    good = ratios["scaled"] <= ALIKE and ratios["same"] >= 2 * ratios["scaled"]
    return [
        Verdict(
            "rank-scaling",
            good if len(found) > 3 else None,
            f"between ranks {min(found)} and {max(found)} the features' movement varies by a "
            f"factor of {ratios['scaled']:.2f}, with the mean's learning rate for S by "
            f"{ratios['same']:.2f}",
            f"{ALIKE:g} at most, and twice as much without the learning rate's factor. From rank "
            f"{LEAST} on: a step on S moves S z by z.z'/R times what it moves the mean by, about "
            "1 for rank 1 and falling to 0, so small ranks differ. The initial scale R^-1/2 is the "
            "same in both",
        )
    ]


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw the movement against the rank from saved results."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axis = figure.subplots()
    for way, title in WAYS.items():
        found = _spread(results, way)
        axis.plot(list(found), list(found.values()), ".-", label=title)
    axis.set(xscale="log", yscale="log", xlabel="rank", ylabel="movement of the features")
    axis.legend()
    for ending in ("pdf", "png"):
        figure.savefig(folder / f"rank_scaling.{ending}")


if __name__ == "__main__":
    run(sys.modules[__name__])
