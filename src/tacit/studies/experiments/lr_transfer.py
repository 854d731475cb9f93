"""The best learning rate against width, in both parametrizations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import torch
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
from tacit.studies.experiments.cells import run_each
from tacit.studies.experiments.evidence import (
    all_of,
    higher,
    interval,
    lower,
    negated,
    paired,
    shortfall,
    within,
)
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.scoring import error_and_nll, means
from tacit.studies.experiments.verdict import Verdict
from tacit.weights.covariance import LowRank

TITLES = {"sp": "standard parametrization", "mup": "muP"}
# Multipliers of the first and the last mean in the forward pass of muP. The initial value of the
# first mean is divided by its multiplier; the last mean is initialized at 0.
INPUT, OUTPUT = 1 / 16, 32.0
PAPER = {"epochs": 20, "train_size": None}


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


@cache
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
    folder: Path = Path("results/lr_transfer"),
    jobs: int = -1,
) -> dict[str, Any]:
    """Train at all widths and learning rates, in both parametrizations."""
    choices = [
        {"seed": seed, "parametrization": name, "width": width, "lr": 2.0**power}
        for seed, width, name, power in product(range(seeds), widths, TITLES, powers)
    ]
    found = run_each(
        train_one, choices, folder, jobs, data=data, rank=rank, train_size=train_size,
        test_size=test_size, epochs=epochs, batch_size=batch_size, samples=samples,
    )  # fmt: skip
    pairs = zip(choices, found, strict=True)
    return {"rows": [{**choice, **row} for choice, row in pairs], "smallest": widths[0]}


def train_one(
    seed: int,
    parametrization: str,
    width: int,
    lr: float,
    data: str,
    rank: int,
    train_size: int | None,
    test_size: int | None,
    epochs: int,
    batch_size: int,
    samples: int,
) -> dict[str, float | None]:
    """Train one network and return its scores."""
    parts = images(data, train_size, test_size)
    torch.manual_seed(seed)
    model = make_model(width, parametrization, parts[0][0].shape[1], rank)
    return learn(model, parametrization, lr, parts, epochs, batch_size, samples)


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


BySeed: TypeAlias = dict[int, dict[int, dict[float, float]]]
"""Seed -> width -> learning rate -> a quantity."""


def by_seed(results: dict[str, Any], name: str, quantity: str) -> BySeed:
    """Return a quantity of a parametrization for each seed, infinite if a run diverged."""
    found: BySeed = {}
    for row in results["rows"]:
        if row["parametrization"] == name:
            value = math.inf if row[quantity] is None else row[quantity]
            found.setdefault(row["seed"], {}).setdefault(row["width"], {})[row["lr"]] = value
    return found


def best(found: BySeed, width: int) -> dict[int, float]:
    """Return the learning rate with the smallest value at a width, by seed."""
    return {s: min(each[width], key=lambda lr: each[width][lr]) for s, each in found.items()}


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return verdicts on the best learning rate, on its transfer, and on muP against SP."""
    lacking = shortfall(arguments, PAPER)
    judge = partial(Verdict, "lr-transfer", lacking=lacking)
    widths = sorted({row["width"] for row in results["rows"]})
    return [
        *(_best_rate(results, name, widths, judge) for name in TITLES),
        *(_transfer(results, name, [w for w in widths if w > 256], judge) for name in TITLES),
        _better(results, widths, judge),
    ]


def _best_rate(
    results: dict[str, Any], name: str, widths: Sequence[int], judge: Callable[..., Verdict]
) -> Verdict:
    """Return the verdict: the rate of the smallest training loss falls (SP) or stays (muP)."""
    losses = by_seed(results, name, "loss")
    logs = {width: {s: math.log2(lr) for s, lr in best(losses, width).items()} for width in widths}
    shift = paired(logs[widths[-1]], logs[widths[0]])
    stays = all_of([within(shift, 1.0), within(negated(shift), 1.0)])
    return judge(
        stays if name == "mup" else lower(shift),
        "log2 of the learning rate with the smallest training loss, by width: "
        + ", ".join(f"{w}: {statistics.fmean(each.values()):.1f}" for w, each in logs.items())
        + f"; from the smallest to the largest width {shift}",
        "the change is within one point of the paper's grid, a factor of 2, over seeds"
        if name == "mup"
        else "smaller at the largest width than at the smallest, over seeds",
        f"{TITLES[name]}: best learning rate {'stays' if name == 'mup' else 'falls'}",
        f"2^{shift.mean:+.1f} times",
    )


def _own_errors(results: dict[str, Any], name: str, width: int) -> dict[int, float]:
    """Return the test error in percent at the rate that validation chooses, by seed."""
    rates = best(by_seed(results, name, "nll"), width)
    errors = by_seed(results, name, "error")
    return {s: 100 * errors[s][width][lr] for s, lr in rates.items()}


def _transfer(
    results: dict[str, Any], name: str, widths: Sequence[int], judge: Callable[..., Verdict]
) -> Verdict:
    """Return the verdict on the rate of the smallest width at widths beyond 256."""
    transferred = best(by_seed(results, name, "nll"), results["smallest"])
    errors = by_seed(results, name, "error")
    lost: dict[int, list[float]] = {}
    spread = []
    for width in widths:
        own = _own_errors(results, name, width)
        several = len(own) > 1
        spread.append(statistics.stdev(own.values()) * math.sqrt(2) if several else math.nan)
        for s, lr in transferred.items():
            lost.setdefault(s, []).append(100 * errors[s][width][lr] - own[s])
    found = interval(statistics.fmean(each) for each in lost.values())
    reference = statistics.fmean(spread) if spread else math.nan
    works = name == "mup"
    return judge(
        within(found, reference) if works else higher(found),
        "test error at the rate of the smallest width minus that at the own rate, both chosen by "
        f"validation NLL, mean over widths beyond 256, in points: {found}"
        + ("" if math.isnan(reference) else f"; two seeds differ by {reference:.2f}"),
        "no larger than the difference between two seeds at the own rate"
        if works
        else "above 0, over seeds: beyond 256 units transfer works poorly",
        f"{TITLES[name]}: transfer works {'well' if works else 'poorly'} beyond 256 units",
        f"{found.mean:+.2f} points",
        **({} if widths else {"lacking": "no width beyond 256"}),
    )


def _better(
    results: dict[str, Any], widths: Sequence[int], judge: Callable[..., Verdict]
) -> Verdict:
    """Return the verdict: muP outperforms SP."""
    gaps = {
        width: paired(_own_errors(results, "mup", width), _own_errors(results, "sp", width))
        for width in widths
    }
    mean = interval(
        statistics.fmean(
            _own_errors(results, "mup", w)[s] - _own_errors(results, "sp", w)[s] for w in widths
        )
        for s in _own_errors(results, "mup", widths[0])
    )
    return judge(
        lower(mean),
        "test error of muP minus that of SP, each at its own rate, in points, by width: "
        + ", ".join(f"{width}: {gap}" for width, gap in gaps.items())
        + f"; mean over widths {mean}",
        "below 0 over seeds, mean over widths",
        "muP outperforms SP",
        f"{mean.mean:+.2f} points",
    )


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
    """,
    figure="Fig. 3",
    caption="Training loss against learning rate for each width, and test error at transferred "
    "learning rates relative to the best",
    claims=("lr-transfer",),
    scales={
        "smoke": {"data": "digits", "widths": (16, 32), "powers": (-6, -4), "epochs": 1, "jobs": 1},
        "cpu": {},
        "paper": {
            "widths": (128, 256, 512, 1024, 2048),
            "train_size": None,
            "test_size": None,
            "epochs": 20,
            "samples": 32,
            "seeds": 3,
        },
    },
    minutes={"smoke": 0.1, "cpu": 20, "paper": 540},
    needs="CIFAR-10",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
