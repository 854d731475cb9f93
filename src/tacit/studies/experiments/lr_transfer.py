"""The best learning rate against width, in both parametrizations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._support.figures import saved
from tacit.calling import Variational, variational
from tacit.data import cifar10, digits
from tacit.scaling import (
    GroupEntry,
    MaximalUpdate,
    Parametrization,
    Standard,
    group_parameters,
    initialize,
)
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.scoring import error_and_nll, means
from tacit.studies.experiments.verdict import Verdict
from tacit.weights.covariance import LowRank

TITLES = {"sp": "standard parametrization", "mup": "muP"}
# Multipliers of the first and the last mean in the forward pass of muP. The initial value of the
# first mean is divided by its multiplier; the last mean is initialized at 0.
INPUT, OUTPUT = 1 / 16, 32.0
TRANSFERS = 1.1  # largest ratio of test errors, transferred to own learning rate


def make_net(inputs: int, width: int) -> nn.Sequential:
    """Return the network of Tensor Programs V: two hidden layers, no biases."""
    return nn.Sequential(
        nn.Linear(inputs, width, bias=False), nn.ReLU(),
        nn.Linear(width, width, bias=False), nn.ReLU(),
        nn.Linear(width, 10, bias=False),
    )  # fmt: skip


def make_model(width: int, name: str, inputs: int, rank: int) -> Variational:
    """Return the variational network, with low rank in the last two layers."""
    net = make_net(inputs, width)
    parametrization: Parametrization = MaximalUpdate() if name == "mup" else Standard()
    initialize(net, parametrization)
    if name == "mup":
        nn.init.zeros_(net.get_parameter("4.weight"))
    where = {"2": LowRank(rank), "4": LowRank(rank)}
    return variational(net, where, parametrization=parametrization)


def entries(model: Variational, name: str) -> Iterator[GroupEntry]:
    """Yield parameters with their learning-rate factors.

    Under SGD a multiplier c of a mean is equivalent to scaling its initial value by c and its
    learning rate by c^2 (Lemma J.1 of Tensor Programs V), so the network needs no multipliers.
    """
    multipliers = {"module.0.weight": INPUT, "module.4.weight": OUTPUT} if name == "mup" else {}
    for entry in model.entries("sgd"):
        yield replace(entry, factor=entry.factor * multipliers.get(entry.name, 1.0) ** 2)


def images(data: str, train_size: int | None, test_size: int | None) -> list[tuple[Tensor, Tensor]]:
    """Return training, validation and test data as pairs of tensors."""
    if data == "digits":
        return list(digits())
    found = cifar10()
    train, validation, test = found.train[:train_size], found.validation, found.test[:test_size]
    parts = (train, validation[:test_size], test)
    return [(part.normalised().flatten(1), part.targets) for part in parts]


def compute(
    data: str = "cifar10",
    widths: tuple[int, ...] = (64, 128, 256, 512),
    powers: tuple[int, ...] = tuple(range(-8, 1)),
    rank: int = 10,
    train_size: int | None = 10_000,
    test_size: int | None = 2_000,
    epochs: int = 8,
    batch_size: int = 64,
    samples: int = 8,
    seeds: int = 1,
) -> dict[str, Any]:
    """Train at all widths and learning rates, in both parametrizations."""
    parts = images(data, train_size, test_size)
    rows = []
    choices = list(product(TITLES, widths, powers, range(seeds)))
    for name, width, power, seed in track(choices, "training runs", transient=True):
        torch.manual_seed(seed)
        model = make_model(width, name, parts[0][0].shape[1], rank)
        settings = {"parametrization": name, "width": width, "lr": 2.0**power, "seed": seed}
        rows.append(
            {**settings, **learn(model, name, 2.0**power, parts, epochs, batch_size, samples)}
        )
    return {"rows": rows, "smallest": widths[0]}


def learn(
    model: Variational,
    name: str,
    lr: float,
    parts: list[tuple[Tensor, Tensor]],
    epochs: int,
    batch_size: int,
    samples: int,
) -> dict[str, float | None]:
    """Train a model; return training loss, validation NLL and test error, None if it diverged."""
    (x, y), validation, test = parts
    optimizer = torch.optim.SGD(group_parameters(entries(model, name), model, lr))
    steps = epochs * math.ceil(len(x) / batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses: list[float] = []
    for _ in range(epochs):
        losses.clear()
        for rows in torch.randperm(len(x)).split(batch_size):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                return {"loss": None, "nll": None, "error": None}
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return {
        "loss": statistics.fmean(losses),
        "nll": error_and_nll(model, validation, samples)["nll"],
        "error": error_and_nll(model, test, samples)["error"],
    }


def table(results: dict[str, Any], name: str, quantity: str) -> dict[int, dict[float, float]]:
    """Return width -> learning rate -> mean over seeds, infinite if a run diverged."""
    rows = [row for row in results["rows"] if row["parametrization"] == name]
    found: dict[int, dict[float, float]] = {}
    for (width, lr), mean in sorted(means(rows, ("width", "lr"), quantity).items()):
        found.setdefault(width, {})[lr] = mean
    return found


def relative_errors(results: dict[str, Any]) -> dict[str, dict[int, tuple[float, float]]]:
    """Return parametrization -> width -> test errors relative to the best at that width.

    The first is at the learning rate that validation chooses at the smallest width, the second at
    the learning rate that it chooses at the width itself.
    """
    errors = {name: table(results, name, "error") for name in TITLES}
    nlls = {name: table(results, name, "nll") for name in TITLES}
    found: dict[str, dict[int, tuple[float, float]]] = {name: {} for name in TITLES}
    for name in TITLES:
        smallest = nlls[name][results["smallest"]]
        transferred = min(smallest, key=lambda lr: smallest[lr])
        for width, each in nlls[name].items():
            own = min(each, key=lambda lr: each[lr])
            best = min(min(errors[other][width].values()) for other in TITLES)
            found[name][width] = (
                errors[name][width][transferred] / best,
                errors[name][width][own] / best,
            )
    return found


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return verdicts on the best learning rate, on its transfer, and on muP against SP."""
    best = {
        name: {width: min(each, key=lambda lr: each[lr]) for width, each in found.items()}
        for name, found in ((name, table(results, name, "loss")) for name in TITLES)
    }
    shift = {name: math.log2(found[max(found)] / found[min(found)]) for name, found in best.items()}
    relative = relative_errors(results)
    # Ratio of test errors: rate of the smallest width to own rate.
    lost = {
        name: {width: moved / own for width, (moved, own) in found.items()}
        for name, found in relative.items()
    }
    own = {name: [pair[1] for pair in found.values()] for name, found in relative.items()}
    grid = {row["lr"] for row in results["rows"]}
    edge = {*best["sp"].values(), *best["mup"].values()} & {min(grid), max(grid)}
    decided = len(best["mup"]) > 2
    transfers = {
        name: all(ratio <= TRANSFERS for ratio in found.values()) for name, found in lost.items()
    }

    def verdict(subject: str, holds: bool, measured: str, criterion: str) -> Verdict:
        return Verdict("lr-transfer", holds if decided else None, measured, criterion, subject)

    shifts = {
        "mup": (abs(shift["mup"]) <= 1, "equal at the largest and the smallest width up to a "
                "factor of 2, one point of the grid"),
        "sp": (shift["sp"] < -1, "smaller at the largest width by more than a factor of 2"),
    }  # fmt: skip
    costs = {
        "mup": (transfers["mup"], f"at most {TRANSFERS:g} at every width"),
        "sp": (not transfers["sp"], f"more than {TRANSFERS:g} at some width"),
    }
    return [
        *(
            verdict(
                f"{TITLES[name]}: best learning rate",
                holds,
                "learning rate with the smallest training loss by width: "
                + ", ".join(f"{w}: 2^{math.log2(lr):.0f}" for w, lr in best[name].items())
                + (" (some at the edge of the grid)" if edge & {*best[name].values()} else ""),
                text,
            )
            for name, (holds, text) in shifts.items()
        ),
        *(
            verdict(
                f"{TITLES[name]}: transfer of the smallest width's learning rate",
                holds,
                "ratio of test errors, transferred to own learning rate, by width: "
                + ", ".join(f"{w}: {ratio:.2f}" for w, ratio in lost[name].items()),
                text,
            )
            for name, (holds, text) in costs.items()
        ),
        verdict(
            "muP is at least as good",
            all(mup <= sp * 1.02 for mup, sp in zip(own["mup"], own["sp"], strict=True)),
            "ratio of test errors at the own learning rate, muP to SP, by width: "
            + ", ".join(
                f"{width}: {mup / sp:.2f}"
                for width, mup, sp in zip(relative["mup"], own["mup"], own["sp"], strict=True)
            ),
            "at most 1.02 at every width",
        ),
    ]


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw the three panels from saved results."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    *panels, right = figure.subplots(1, 3)
    for axis, name in zip(panels, TITLES, strict=True):
        found = table(results, name, "loss")
        for i, (width, each) in enumerate(found.items()):
            color = colormaps["viridis"](0.9 * (1 - i / max(1, len(found) - 1)))
            finite = {lr: loss for lr, loss in each.items() if math.isfinite(loss)}
            axis.plot(list(finite), list(finite.values()), ".-", color=color, label=f"{width}")
            if finite:
                lr = min(finite, key=lambda rate: finite[rate])
                axis.plot([lr], [finite[lr]], "*", color=color, markersize=11)
        axis.set(xscale="log", yscale="log", xlabel="learning rate", title=TITLES[name])
    panels[0].set_ylabel("training loss")
    panels[0].legend(title="width", fontsize="small")
    colors = {"sp": "tab:orange", "mup": "tab:blue"}
    for name, pairs in relative_errors(results).items():
        for place, style, label in ((0, "o-", "rate of smallest width"), (1, "s--", "own rate")):
            heights = [pair[place] for pair in pairs.values()]
            right.plot(list(pairs), heights, style, color=colors[name], label=f"{name}, {label}")
    right.set(xscale="log", xlabel="width", title="test error / best at this width")
    right.set_xticks(list(pairs), [str(width) for width in pairs], minor=False)
    right.xaxis.set_minor_formatter(NullFormatter())
    right.legend(fontsize="small")
    for ending in ("pdf", "png"):
        saved(figure, folder / f"lr_transfer.{ending}")


EXPERIMENT = Experiment(
    name="lr_transfer",
    title="The claim `lr-transfer`: under muP the best learning rate is the same at every width.",
    about="""
    The paper's third figure: MLPs with two hidden layers on CIFAR-10, low-rank covariances in the
    last two layers, SGD, batches of 64, cosine annealing, learning rates from 2^-8 to 2^0, in the
    standard parametrization and in muP with the paper's multipliers of the means. Left and middle:
    training loss against learning rate. Right: test error at the learning rate that validation
    chooses at the smallest width, and at the one that it chooses at each width, relative to the
    best error at that width. The scale "cpu" has widths of 64 to 512 and 10,000 images, "paper"
    128 to 2048 and all images.

    The criteria were rewritten after a first run, on other data and with another optimizer. In the
    paper the best learning rate of the standard parametrization falls beyond 256 units.
    """,
    claims=("lr-transfer",),
    scales={
        "smoke": {"data": "digits", "widths": (16, 32), "powers": (-6, -4), "epochs": 1},
        "cpu": {},
        "paper": {
            "widths": (128, 256, 512, 1024, 2048),
            "train_size": None,
            "epochs": 20,
            "seeds": 5,
        },
    },
    minutes={"smoke": 0.1, "cpu": 20, "paper": 4000},
    needs="CIFAR-10; paper: also a GPU",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
