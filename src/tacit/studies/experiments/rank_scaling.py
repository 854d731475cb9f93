"""How far features move in training, against the rank of the covariance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._support.figures import saved
from tacit.calling import Variational, variational
from tacit.scaling import GroupEntry, MaximalUpdate, group_parameters, initialize
from tacit.studies.experiments.evidence import all_of, geometric, higher, interval, no_different
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.verdict import Verdict
from tacit.weights.covariance import LowRank

# Learning rates of S, by their names in the saved results.
WAYS = {"scaled": "1/R times the mean's learning rate", "same": "the mean's learning rate"}


def compute(
    ranks: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64),
    width: int = 128,
    lr: float = 0.003,
    steps: int = 3,
    seeds: int = 12,
    samples: int = 32,
) -> dict[str, Any]:
    """Train a few steps at every rank; return how far the hidden features move."""
    rows = []
    for way in WAYS:
        for rank in ranks:
            moves = [_moved(way, rank, width, lr, steps, seed, samples) for seed in range(seeds)]
            rows.append({"way": way, "rank": rank, "moves": moves})
    return {"rows": rows}


def _moved(
    way: str, rank: int, width: int, lr: float, steps: int, seed: int, samples: int
) -> float:
    """Return the root mean square movement of the last hidden features of the same draws."""
    torch.manual_seed(seed)
    parametrization = MaximalUpdate()
    net = nn.Sequential(
        nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    initialize(net, parametrization)
    model = variational(net, {"*": LowRank(rank)}, parametrization=parametrization)
    x, y = torch.randn(32, 8), torch.randn(32, 1)
    before = _features(model, x, samples)
    optimizer = torch.optim.SGD(group_parameters(_entries(model, way, rank), model, lr))
    for _ in range(steps):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (_features(model, x, samples) - before).square().mean().sqrt().item()


def _entries(model: Variational, way: str, rank: int) -> Iterator[GroupEntry]:
    """Yield parameters with their learning-rate factors; for "same" the 1/R of S is undone."""
    for entry in model.entries("sgd"):
        inverse = rank if way == "same" and entry.part == "factors" else 1
        yield replace(entry, factor=entry.factor * inverse)


@torch.no_grad()
def _features(model: Variational, x: Tensor, samples: int) -> Tensor:
    """Return the last hidden features, under the same noise in every call."""
    weights = model.sample(samples, generator=torch.Generator().manual_seed(0))
    first = F.relu(x @ weights["0.weight"].mT + weights["0.bias"][:, None])
    return F.relu(first @ weights["2.weight"].mT + weights["2.bias"][:, None])


def _mean_moves(results: dict[str, Any], way: str) -> dict[int, float]:
    return {
        row["rank"]: statistics.fmean(row["moves"]) for row in results["rows"] if row["way"] == way
    }


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdict on the claim, from the two largest ranks."""
    ranks = sorted({row["rank"] for row in results["rows"]})
    grown = {}
    for way in WAYS:
        logs = {
            row["rank"]: [geometric([value]) for value in row["moves"]]
            for row in results["rows"]
            if row["way"] == way
        }
        *_, half, full = ranks
        grown[way] = interval(b - a for a, b in zip(logs[half], logs[full], strict=True))
    ratios = {way: math.exp(found.mean) for way, found in grown.items()}
    return [
        Verdict(
            "rank-scaling",
            all_of([no_different(grown["scaled"]), higher(grown["same"])]),
            f"from rank {half} to {full} the log of the features' movement changes by "
            f"{grown['scaled']}, a factor of {ratios['scaled']:.2f}; with the mean's learning rate "
            f"for S by {grown['same']}, a factor of {ratios['same']:.2f}",
            "between the two largest ranks no change over seeds (the scaling is argued by the "
            "central limit theorem, for large ranks), but growth with the mean's learning rate, "
            "which is the reference",
            number=f"{ratios['scaled']:.2f} times",
            lacking="" if len(ranks) > 3 else f"{len(ranks)} ranks",
        )
    ]


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw the movement of the features against the rank from saved results."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axis = figure.subplots()
    for way, title in WAYS.items():
        found = _mean_moves(results, way)
        axis.plot(list(found), list(found.values()), ".-", label=title)
    axis.set(xscale="log", yscale="log", xlabel="rank", ylabel="movement of the features")
    axis.legend(title="learning rate of S")
    for ending in ("pdf", "png"):
        saved(figure, folder / f"rank_scaling.{ending}")


EXPERIMENT = Experiment(
    name="rank_scaling",
    figure="Proposed Scaling, without a figure",
    title="The claim `rank-scaling`: training with scaled factors doesn't depend on the rank.",
    about="""
    How far the features of MLPs move in a few steps, for ranks from 1 to 64: with S initialized at
    R^-1/2 of its scale and the learning rate of S at 1/R of the mean's (SGD), and, for comparison,
    with the mean's learning rate.
    """,
    caption="Movement of the features against the rank, for two learning rates of S",
    claims=("rank-scaling",),
    scales={"smoke": {"ranks": (1, 4), "seeds": 1}, "cpu": {}, "paper": {"seeds": 50}},
    minutes={"smoke": 0.1, "cpu": 0.5, "paper": 2},
    needs="nothing",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
