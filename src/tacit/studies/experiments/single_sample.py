"""Training with one or several draws of the weights per step."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit._support.figures import saved
from tacit.calling import Variational, variational
from tacit.data import digits, mnist
from tacit.models import MLP
from tacit.studies.experiments.cells import ALL, run_each, trained
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.scoring import error_and_nll, means
from tacit.studies.experiments.single_sample_verdicts import MOMENTA, SMALL, WAYS, verdicts
from tacit.weights import first_and_last


@cache
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
    folder: Path = Path("results/single_sample"),
    jobs: int = -1,
    cells: str = ALL,
) -> dict[str, Any]:
    """Train with all numbers of draws and learning rates; return error and NLL at several steps.

    Trainings that the pattern `cells` leaves out, and that the folder lacks, have no rows.
    """
    choices = [
        {"seed": seed, "optimizer": optimizer, "way": way, "lr": lr}
        for seed, optimizer, way, lr in product(range(seeds), MOMENTA, WAYS, rates)
    ]
    found = run_each(
        train_one, choices, folder, jobs, cells=cells, data=data, train_size=train_size,
        test_size=test_size, steps=steps, points=points, batch_size=batch_size, samples=samples,
    )  # fmt: skip
    rows = [
        {**choice, **row} for choice, each in zip(choices, found, strict=True) for row in each or ()
    ]
    return {"rows": rows, "trained": trained(choices, found)}


def train_one(
    seed: int,
    optimizer: str,
    way: str,
    lr: float,
    data: str,
    train_size: int,
    test_size: int,
    steps: int,
    points: int,
    batch_size: int,
    samples: int,
) -> list[dict[str, Any]]:
    """Train one network; return its scores at steps spaced by factors of 2."""
    parts = images(data, train_size, test_size)
    checkpoints = sorted({round(steps * 2.0 ** (p - points)) for p in range(1, points + 1)} - {0})
    torch.manual_seed(seed)
    net = MLP(parts[0][0][0].numel(), (128, 128), 10)
    model = variational(net, first_and_last)
    return learn(model, parts, way, MOMENTA[optimizer], lr, checkpoints, batch_size, samples)


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
    """Train a model; return its validation NLL, test error and test NLL at the checkpoints.

    Training ends when parameters are no longer finite: no later step changes that.
    """
    (x, y), validation, test = parts
    passes, keywords = WAYS[way]
    optimizer = torch.optim.SGD(model.param_groups(lr), momentum=momentum)
    rows, step = [], 0
    for end in checkpoints:
        alive = all(bool(parameter.isfinite().all()) for parameter in model.parameters())
        while alive and step < end:
            chosen = torch.randint(len(x), (batch_size,))
            logits = model(x[chosen], **keywords)
            targets = y[chosen].expand(logits.shape[:-1])
            loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        step = end
        validation_nll = error_and_nll(model, validation, samples)["nll"]
        found = error_and_nll(model, test, samples)
        rows.append({"step": step, "passes": step * passes, "validation": validation_nll, **found})
    return rows


def rows_of(rows: Iterable[dict[str, Any]], optimizer: str, way: str) -> list[dict[str, Any]]:
    """Return the rows of an optimizer and a number of draws."""
    return [r for r in rows if (r["optimizer"], r["way"]) == (optimizer, way)]


def best_rates(results: dict[str, Any], optimizer: str, way: str) -> dict[int, float]:
    """Return the learning rate that validation chooses, by number of steps."""
    found = means(rows_of(results["rows"], optimizer, way), ("step", "lr"), "validation")
    rates = {lr for _, lr in found}
    return {
        step: min(rates, key=lambda lr: found[step, lr]) for step in sorted({s for s, _ in found})
    }


def at_best(results: dict[str, Any], optimizer: str, way: str, quantity: str) -> dict[int, float]:
    """Return the mean over seeds at the chosen learning rate, by number of steps."""
    found = means(rows_of(results["rows"], optimizer, way), ("step", "lr"), quantity)
    return {step: found[step, lr] for step, lr in best_rates(results, optimizer, way).items()}


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw error and NLL against learning rate, steps and passes from saved results."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    last = max(row["step"] for row in results["rows"])
    passes = {way: count for way, (count, _) in WAYS.items()}
    for quantity, title in (("error", "test error"), ("nll", "test NLL")):
        finished = _finished(results["rows"])
        figure = Figure(figsize=(11, 3 * len(finished)), layout="constrained")
        axes = figure.subplots(len(finished), 3, sharey="row", squeeze=False)
        for line, (optimizer, ways) in zip(axes, finished.items(), strict=True):
            for way in ways:
                style = {"marker": ".", "linestyle": "--" if "draws" in way else "-", "label": way}
                rates = means(
                    [
                        row
                        for row in rows_of(results["rows"], optimizer, way)
                        if row["step"] == last
                    ],
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
    _draw_samples([row for row in results["rows"] if row["step"] == last], folder)
    if small := [row for row in results["rows"] if row["lr"] == SMALL]:
        _draw_small_rate(small, folder)


def _finished(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the optimizers with finished trainings -> their numbers of draws."""
    found = {(row["optimizer"], row["way"]) for row in rows}
    ways = {name: [way for way in WAYS if (name, way) in found] for name in MOMENTA}
    return {name: each for name, each in ways.items() if each}


def _draw_samples(rows: list[dict[str, Any]], folder: Path) -> None:
    """Draw the test error against M in the paper's arrangement: lighter lines, smaller rates."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    rates = sorted({row["lr"] for row in rows})
    shades = {lr: colormaps["Blues"]((i + 2) / (len(rates) + 1)) for i, lr in enumerate(rates)}
    finished = _finished(rows)
    figure = Figure(figsize=(4.5 * len(finished), 3.4), layout="constrained")
    axes = figure.subplots(1, len(finished), sharey=True, squeeze=False)[0]
    for axis, (optimizer, ways) in zip(axes, finished.items(), strict=True):
        counts = {way: WAYS[way][0] for way in ways if "draws" not in way}
        found = means(
            (row for row in rows if row["optimizer"] == optimizer), ("way", "lr"), "error"
        )
        for lr, shade in shades.items():
            line = {count: found[way, lr] for way, count in counts.items() if (way, lr) in found}
            axis.plot(list(line), list(line.values()), ".-", color=shade, label=f"{lr:g}")
        axis.set(xscale="log", yscale="log", xlabel="samples M", title=optimizer)
        axis.set_xticks(
            list(counts.values()), [str(count) for count in counts.values()], minor=False
        )
        axis.minorticks_off()
    axes[0].set_ylabel("test error")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", title="learning rate")
    for ending in ("pdf", "png"):
        saved(figure, folder / f"samples.{ending}")


def _draw_small_rate(rows: list[dict[str, Any]], folder: Path) -> None:
    """Draw the test error during training at the paper's small learning rate."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    finished = _finished(rows)
    figure = Figure(figsize=(4.5 * len(finished), 3.4), layout="constrained")
    axes = figure.subplots(1, len(finished), sharey=True, squeeze=False)[0]
    for axis, (optimizer, ways) in zip(axes, finished.items(), strict=True):
        for way in ways:
            found = means(rows_of(rows, optimizer, way), ("step",), "error")
            style = "--" if "draws" in way else "-"
            steps = [step for (step,) in found]
            axis.plot(steps, list(found.values()), style, marker=".", label=way)
        title = f"{optimizer}, learning rate {SMALL:g}"
        axis.set(xscale="log", yscale="log", xlabel="steps", ylabel="test error", title=title)
        axis.xaxis.set_minor_formatter(NullFormatter())
    axis.legend(fontsize="small")
    for ending in ("pdf", "png"):
        saved(figure, folder / f"small_rate.{ending}")


EXPERIMENT = Experiment(
    name="single_sample",
    title="The claim `single-sample`: one draw of the weights per step trains as well as many.",
    about="""
    The paper's second figure and the supplement's on efficient training: an MLP with two hidden
    layers of 128 units on MNIST, low rank in its first and last layer, M functions per step, a grid
    of learning rates, with and without momentum. Beyond the paper: 8 draws in one pass, each for an
    eighth of the batch, at the number of passes of M = 1. The scale "cpu" trains on 10,000 images
    for 10 epochs, "paper" on all images for 50, with
    one more learning rate, since at "cpu" the largest one is often the best without momentum.
    """,
    figure="Fig. 2 and three figures of the supplement",
    caption="Test error or NLL for each number of functions per step",
    claims=("single-sample",),
    scales={
        "smoke": {
            "data": "digits",
            "rates": (0.003, 0.1),
            "steps": 8,
            "points": 2,
            "samples": 2,
            "seeds": 2,
            "jobs": 1,
        },
        "cpu": {},
        "paper": {
            "train_size": 54_000,
            "test_size": 10_000,
            "rates": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
            "steps": 21_100,
            "points": 12,
            "samples": 32,
            "seeds": 5,
        },
    },
    minutes={"smoke": 0.1, "cpu": 20, "paper": 500},
    needs="MNIST",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
