"""Training with one or several draws of the weights per step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
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
from tacit.studies.experiments.cells import ALL, run_each
from tacit.studies.experiments.evidence import (
    all_of,
    higher,
    interval,
    lower,
    no_higher,
    paired,
    shortfall,
)
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
SMALL = 0.003  # the learning rate of the paper's third figure
CHANCE = 90.0  # error in percent of a run that diverged
PAPER = {"steps": 21_100, "train_size": 54_000}


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
    pairs = zip(choices, found, strict=True)
    return {"rows": [{**choice, **row} for choice, rows in pairs for row in rows or ()]}


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


def rows_of(results: dict[str, Any], optimizer: str, way: str) -> list[dict[str, Any]]:
    """Return the rows of an optimizer and a number of draws."""
    return [r for r in results["rows"] if (r["optimizer"], r["way"]) == (optimizer, way)]


def best_rates(results: dict[str, Any], optimizer: str, way: str) -> dict[int, float]:
    """Return the learning rate that validation chooses, by number of steps."""
    found = means(rows_of(results, optimizer, way), ("step", "lr"), "validation")
    steps = {row["step"] for row in results["rows"]}
    rates = {row["lr"] for row in results["rows"]}
    return {step: min(rates, key=lambda lr: found[step, lr]) for step in sorted(steps)}


def at_best(results: dict[str, Any], optimizer: str, way: str, quantity: str) -> dict[int, float]:
    """Return the mean over seeds at the chosen learning rate, by number of steps."""
    found = means(rows_of(results, optimizer, way), ("step", "lr"), quantity)
    return {step: found[step, lr] for step, lr in best_rates(results, optimizer, way).items()}


@dataclass(frozen=True)
class Run:
    """Test errors in percent of one optimizer by way, learning rate, step and seed."""

    optimizer: str
    errors: Mapping[tuple[str, float, int, int], float]
    chosen: Mapping[tuple[str, int], float]  # learning rate by way and seed, after the last step
    last: int

    @classmethod
    def read(cls, results: dict[str, Any], optimizer: str) -> Run:
        """Return the errors of saved results; a run that diverged has the error of chance."""
        rows = [row for row in results["rows"] if row["optimizer"] == optimizer]
        last = max(row["step"] for row in rows)
        errors, nll = {}, {}
        for row in rows:
            key = row["way"], row["lr"], row["step"], row["seed"]
            errors[key] = CHANCE if row["error"] is None else 100 * row["error"]
            nll[key] = math.inf if row["validation"] is None else row["validation"]
        chosen = {
            (way, seed): min(
                (lr for w, lr, step, s in errors if (w, step, s) == (way, last, seed)),
                key=lambda lr: nll[way, lr, last, seed],
            )
            for way, _, _, seed in errors
        }
        return cls(optimizer, errors, chosen, last)

    def best(self, way: str) -> dict[int, float]:
        """Return the error after the last step at the learning rate that validation chooses."""
        return {
            s: self.errors[w, lr, self.last, s] for (w, s), lr in self.chosen.items() if w == way
        }

    def at(self, way: str, lr: float, step: int) -> dict[int, float]:
        """Return the errors at a learning rate and step by seed."""
        return {
            s: error for (w, rate, t, s), error in self.errors.items()
            if (w, rate, t) == (way, lr, step)
        }  # fmt: skip

    def rate(self, way: str) -> dict[int, float]:
        """Return the logarithm, base 2, of the chosen learning rate by seed."""
        return {s: math.log2(lr) for (w, s), lr in self.chosen.items() if w == way}


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return verdicts on each sentence of the paper, and on our draws in one pass."""
    runs = {name: Run.read(results, name) for name in MOMENTA}
    lacking = shortfall(arguments, PAPER)
    grid = sorted({row["lr"] for row in results["rows"]})
    judge = partial(Verdict, "single-sample", lacking=lacking)
    found = []
    for name, run in runs.items():
        gap = paired(run.best("M=1"), run.best("M=8"))
        found.append(
            judge(
                no_higher(gap),
                f"test error of M=1 minus that of M=8, in points, after {run.last:,} steps: {gap}",
                "no larger over seeds, each at the learning rate that validation chooses: more "
                "steps or momentum close the gap",
                f"{name}: one sample trains as well as eight",
                f"{gap.mean:+.2f} points",
            )
        )
        moved = paired(run.rate("M=1"), run.rate("M=8"))
        found.append(
            judge(
                lower(moved),
                f"log2 of the learning rate that validation chooses, M=1 minus M=8: {moved}; "
                + ", ".join(
                    f"{way} 2^{statistics.fmean(run.rate(way).values()):.1f}" for way in WAYS
                ),
                "smaller for M=1 than for M=8 at the same number of steps, over seeds",
                f"{name}: fewer samples need a smaller rate",
                f"2^{moved.mean:+.1f} times",
            )
        )
    found += [_plateau(runs, judge), _vanishes(runs, grid, judge), _momentum(runs, judge)]
    return [*found, *(_draws(run, judge) for run in runs.values())]


def _plateau(runs: Mapping[str, Run], judge: Callable[..., Verdict]) -> Verdict:
    """Return the verdict: for a fixed rate, more samples soon bring little."""
    gains: dict[str, list[float]] = {"1 to 2": [], "4 to 8": []}
    differences: dict[int, list[float]] = {}
    for run in runs.values():
        rates = {lr for _, lr, _, _ in run.errors}
        for lr in rates:
            errors = {way: run.at(way, lr, run.last) for way in WAYS}
            for s in errors["M=1"]:
                first = errors["M=1"][s] - errors["M=2"][s]
                later = errors["M=4"][s] - errors["M=8"][s]
                gains["1 to 2"].append(first)
                gains["4 to 8"].append(later)
                differences.setdefault(s, []).append(first - later)
    found = interval(statistics.fmean(values) for values in differences.values())
    return judge(
        higher(found),
        "fall of the test error from M = "
        + ", ".join(f"{name}: {statistics.fmean(each):.2f} points" for name, each in gains.items())
        + f"; difference {found}",
        "at the same learning rate the error falls more from M=1 to 2 than from M=4 to 8, mean "
        "over rates and optimizers",
        "for a fixed rate generalization plateaus with more samples",
        f"{statistics.fmean(gains['4 to 8']):.2f} points from 4 to 8",
    )


def _vanishes(
    runs: Mapping[str, Run], grid: Sequence[float], judge: Callable[..., Verdict]
) -> Verdict:
    """Return the verdict at the paper's small learning rate: the gap vanishes with more steps."""
    if SMALL not in grid:
        return judge(
            None, "not trained", f"at a learning rate of {SMALL:g}",
            f"at a rate of {SMALL:g} the gap vanishes with more steps",
            lacking=f"the run lacks the learning rate {SMALL:g}",
        )  # fmt: skip
    states, lines = [], []
    for name, run in runs.items():
        steps = sorted({step for _, _, step, _ in run.errors})
        gaps = {t: paired(run.at("M=1", SMALL, t), run.at("M=8", SMALL, t)) for t in steps}
        largest = max(gaps.values(), key=lambda gap: gap.mean)
        states.append(no_higher(gaps[run.last]))
        lines.append(f"{name}: at most {largest.mean:+.2f}, at the end {gaps[run.last]}")
    return judge(
        all_of(states),
        "test error of M=1 minus that of M=8, in points; " + "; ".join(lines),
        f"at a learning rate of {SMALL:g}, the paper's example, no larger than 0 at the end, over "
        "seeds, for SGD and with momentum",
        f"at a rate of {SMALL:g} the gap vanishes with more steps",
        f"{gaps[run.last].mean:+.2f} points at the end, {run.optimizer}",
    )


def _momentum(runs: Mapping[str, Run], judge: Callable[..., Verdict]) -> Verdict:
    """Return the verdict on momentum: better, but one sample needs a smaller rate."""
    plain, momentum = (runs[name] for name in MOMENTA)
    gain = paired(momentum.best("M=8"), plain.best("M=8"))
    rate = paired(momentum.rate("M=1"), plain.rate("M=1"))
    return judge(
        all_of([lower(gain), lower(rate)]),
        f"with momentum minus without: test error of M=8 {gain} points; log2 of the rate that "
        f"validation chooses for M=1 {rate}",
        "both below 0 over seeds",
        "momentum improves generalization, and few samples then need a smaller rate",
        f"{gain.mean:+.2f} points",
    )


def _draws(run: Run, judge: Callable[..., Verdict]) -> Verdict:
    gap = paired(run.best("8 draws"), run.best("M=8"))
    return judge(
        no_higher(gap),
        f"test error of 8 draws in one pass minus that of M=8, in points: {gap}, at an eighth of "
        "the passes",
        "no larger over seeds, each at the learning rate that validation chooses",
        f"{run.optimizer}: 8 draws in one pass match M=8",
        f"{gap.mean:+.2f} points",
        lacking="",
        ours=True,
    )


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
    if any(row["lr"] == SMALL for row in results["rows"]):
        _draw_small_rate(results, folder)


def _draw_small_rate(results: dict[str, Any], folder: Path) -> None:
    """Draw the test error during training at the paper's small learning rate."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axis, optimizer in zip(figure.subplots(1, len(MOMENTA), sharey=True), MOMENTA, strict=True):
        for way in WAYS:
            rows = [row for row in rows_of(results, optimizer, way) if row["lr"] == SMALL]
            found = means(rows, ("step",), "error")
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
    for 10 epochs, "paper" on all images for 50.
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
