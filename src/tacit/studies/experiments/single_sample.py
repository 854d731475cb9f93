"""Training with one or several draws of the weights per step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from torch.nn import functional as F

from tacit._support.figures import saved
from tacit.calling import Variational, variational
from tacit.data import digits, mnist
from tacit.models import MLP
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.scoring import error_and_nll, means
from tacit.studies.experiments.verdict import Verdict
from tacit.weights import first_and_last

WAYS: dict[str, tuple[int, dict[str, int]]] = {  # passes per step, keywords of the model
    "M=1": (1, {}),
    "M=2": (2, {"samples": 2}),
    "M=4": (4, {"samples": 4}),
    "M=8": (8, {"samples": 8}),
    "8 draws": (1, {"draws": 8}),
}
MOMENTA = {"SGD": 0.0, "SGD with momentum": 0.9}
CLOSE = 1.1  # largest ratio of NLL to that of M=8


def images(data: str, train_size: int, test_size: int) -> list[tuple[Tensor, Tensor]]:
    """Return training, validation and test data as pairs of tensors."""
    if data == "digits":
        return list(digits())
    found = mnist()
    parts = (found.train[:train_size], found.validation[:test_size], found.test[:test_size])
    return [(part.normalised(), part.targets) for part in parts]


def compute(
    data: str = "mnist",
    train_size: int = 10_000,
    test_size: int = 2_000,
    rates: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    steps: int = 780,
    points: int = 6,
    batch_size: int = 128,
    samples: int = 8,
    seeds: int = 2,
) -> dict[str, Any]:
    """Train with all numbers of draws and learning rates; return error and NLL at several steps."""
    parts = images(data, train_size, test_size)
    checkpoints = sorted({round(steps * 2.0 ** (p - points)) for p in range(1, points + 1)} - {0})
    rows = []
    choices = list(product(MOMENTA, WAYS, rates, range(seeds)))
    for optimizer, way, lr, seed in track(choices, "training runs", transient=True):
        torch.manual_seed(seed)
        net = MLP(parts[0][0][0].numel(), (128, 128), 10)
        model = variational(net, first_and_last)
        found = learn(model, parts, way, MOMENTA[optimizer], lr, checkpoints, batch_size, samples)
        settings = {"optimizer": optimizer, "way": way, "lr": lr, "seed": seed}
        rows += [{**settings, **row} for row in found]
    return {"rows": rows}


def learn(
    model: Variational,
    parts: list[tuple[Tensor, Tensor]],
    way: str,
    momentum: float,
    lr: float,
    checkpoints: Iterable[int],
    batch_size: int,
    samples: int,
) -> list[dict[str, Any]]:
    """Train a model; return its validation NLL, test error and test NLL at the checkpoints."""
    (x, y), validation, test = parts
    passes, keywords = WAYS[way]
    optimizer = torch.optim.SGD(model.param_groups(lr), momentum=momentum)
    rows, step = [], 0
    for end in checkpoints:
        while step < end:
            chosen = torch.randint(len(x), (batch_size,))
            logits = model(x[chosen], **keywords)
            targets = y[chosen].expand(logits.shape[:-1])
            loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        validation_nll = error_and_nll(model, validation, samples)["nll"]
        found = error_and_nll(model, test, samples)
        rows.append({"step": step, "passes": step * passes, "validation": validation_nll, **found})
    return rows


def rows_of(results: dict[str, Any], optimizer: str, way: str) -> list[dict[str, Any]]:
    """Return the rows of an optimizer and a number of draws."""
    return [r for r in results["rows"] if (r["optimizer"], r["way"]) == (optimizer, way)]


def best_rates(results: dict[str, Any], optimizer: str, way: str) -> dict[int, float]:
    """Return the learning rate that validation chooses, by number of steps."""
    found = means(rows_of(results, optimizer, way), ("step", "lr"), "validation")
    steps = {row["step"] for row in results["rows"]}
    rates = {row["lr"] for row in results["rows"]}
    return {step: min(rates, key=lambda lr: found[step, lr]) for step in sorted(steps)}


def largest_rate(results: dict[str, Any], optimizer: str, way: str, step: int) -> float:
    """Return the largest learning rate with an NLL below half of chance level; 0 if none."""
    found = means(rows_of(results, optimizer, way), ("step", "lr"), "nll")
    chance = math.log(10)
    return max(
        (lr for (at, lr), nll in found.items() if at == step and nll < chance / 2), default=0
    )


def at_best(results: dict[str, Any], optimizer: str, way: str, quantity: str) -> dict[int, float]:
    """Return the mean over seeds at the chosen learning rate, by number of steps."""
    found = means(rows_of(results, optimizer, way), ("step", "lr"), quantity)
    return {step: found[step, lr] for step, lr in best_rates(results, optimizer, way).items()}


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return verdicts on each part of the claim, and on draws in one pass."""
    rows = results["rows"]
    steps = sorted({row["step"] for row in rows})
    first, last = steps[len(steps) // 2], steps[-1]
    grid = sorted({row["lr"] for row in rows})
    decided = last >= 500 and len(grid) > 3 and len({row["seed"] for row in rows}) > 1
    found = []

    def add(subject: str, holds: bool, measured: str, criterion: str) -> None:
        state = holds if decided else None
        found.append(Verdict("single-sample", state, measured, criterion, subject))

    for optimizer in MOMENTA:
        nll = {way: at_best(results, optimizer, way, "nll") for way in WAYS}
        rates = {way: best_rates(results, optimizer, way)[last] for way in WAYS}
        finite = all(math.isfinite(nll[way][step]) for way in WAYS for step in (first, last))
        one, draws = (
            {step: nll[way][step] / nll["M=8"][step] for step in (first, last)}
            for way in ("M=1", "8 draws")
        )
        add(
            f"{optimizer}: M=1 trains, and the gap closes",
            finite and one[last] <= CLOSE and one[last] <= max(one[first], 1.0),
            f"M=1 has {one[last]:.2f} times the NLL of M=8 after {last} steps, {one[first]:.2f} "
            f"after {first}",
            f"at most {CLOSE:g} times, and no more than before, each at the learning rate that "
            "validation chooses",
        )
        stable = {way: largest_rate(results, optimizer, way, last) for way in WAYS}
        few_to_many = [stable[way] for way in ("M=1", "M=2", "M=4", "M=8")]
        add(
            f"{optimizer}: fewer samples need a smaller learning rate",
            few_to_many == sorted(few_to_many) and few_to_many[0] < few_to_many[-1],
            f"largest learning rates that train, of {grid[0]:g} to {grid[-1]:g}: "
            + ", ".join(f"{way} {rate:g}" for way, rate in stable.items())
            + "; validation chooses "
            + ", ".join(f"{way} {rate:g}" for way, rate in rates.items()),
            "the largest learning rate with an NLL below half of chance level does not fall from "
            "M=1 to M=8, and is smaller for M=1; the grid has steps of about 3",
        )
        add(
            f"{optimizer}: 8 draws match M=8 (our claim)",
            finite and draws[last] <= CLOSE and draws[first] <= CLOSE,
            f"8 draws in one pass have {draws[last]:.2f} times the NLL of M=8 after {last} steps, "
            f"{draws[first]:.2f} after {first}, at an eighth of the passes",
            f"at most {CLOSE:g} times, each at the learning rate that validation chooses",
        )
    return found


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw error and NLL against learning rate, steps and passes from saved results."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    last = max(row["step"] for row in results["rows"])
    passes = {way: count for way, (count, _) in WAYS.items()}
    for quantity, title in (("error", "test error"), ("nll", "test NLL")):
        figure = Figure(figsize=(11, 6), layout="constrained")
        axes = figure.subplots(len(MOMENTA), 3, sharey="row", squeeze=False)
        for line, optimizer in zip(axes, MOMENTA, strict=True):
            for way in WAYS:
                style = {"marker": ".", "linestyle": "--" if "draws" in way else "-", "label": way}
                rates = means(
                    [row for row in rows_of(results, optimizer, way) if row["step"] == last],
                    ("lr",),
                    quantity,
                )
                line[0].plot([lr for (lr,) in rates], list(rates.values()), **style)
                chosen = at_best(results, optimizer, way, quantity)
                line[1].plot(list(chosen), list(chosen.values()), **style)
                steps = [step * passes[way] for step in chosen]
                line[2].plot(steps, list(chosen.values()), **style)
            line[0].set(ylabel=f"{title}, {optimizer}", yscale="log")
            for axis, label in zip(
                line,
                (f"learning rate, after {last} steps", "steps, chosen rate", "passes, chosen rate"),
                strict=True,
            ):
                axis.set(xscale="log", xlabel=label)
                axis.xaxis.set_minor_formatter(NullFormatter())
        axes[0][0].legend(fontsize="small")
        for ending in ("pdf", "png"):
            saved(figure, folder / f"{quantity}.{ending}")


EXPERIMENT = Experiment(
    name="single_sample",
    title="The claim `single-sample`: one draw of the weights per step trains as well as many.",
    about="""
    The paper's second figure and the supplement's on efficient training: an MLP with two hidden
    layers of 128 units on MNIST, low rank in its first and last layer, M functions per step, a grid
    of learning rates, with and without momentum. Beyond the paper: 8 draws in one pass, each for an
    eighth of the batch, at the number of passes of M = 1. The scale "cpu" trains on 10,000 images
    for 10 epochs, "paper" on all images for 50.

    The criterion for "a smaller rate" was changed after a first run: at first the learning rate
    that validation chooses, which was the same for every M; now the largest learning rate that
    trains.
    """,
    claims=("single-sample",),
    scales={
        "smoke": {
            "data": "digits",
            "rates": (0.01, 0.1),
            "steps": 8,
            "points": 2,
            "samples": 2,
            "seeds": 1,
        },
        "cpu": {},
        "paper": {
            "train_size": 54_000,
            "test_size": 10_000,
            "steps": 21_100,
            "points": 12,
            "samples": 32,
            "seeds": 5,
        },
    },
    minutes={"smoke": 0.1, "cpu": 20, "paper": 900},
    needs="MNIST",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
