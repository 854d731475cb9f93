"""The claim `single-sample`: one draw of the weights per step trains as well as many.

    python -m tacit.experiments.single_sample --out DIR

The paper's second figure and the supplement's on efficient training: an MLP with two hidden layers
of 128 units on MNIST, low rank in its first and last layer, M functions in a step, a grid of
learning rates, with and without momentum. And what the paper hasn't: 8 draws in one pass, each for
an eighth of the batch, which costs as many passes as M = 1. The scale "cpu" trains on 10,000 images
for 10 epochs; "paper" on all of them for 50.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.data import digits, mnist
from tacit.experiments.runner import Scales, run
from tacit.experiments.verdict import Verdict
from tacit.models import MLP
from tacit.predictive import average_log_probs
from tacit.selection import first_and_last
from tacit.variational import Variational, variational

SCALES: Scales = {
    "smoke": {
        "data": "digits",
        "rates": (0.01, 0.1),
        "steps": 8,
        "points": 2,
        "samples": 2,
        "seeds": 1,
    },
    "cpu": {},
    "paper": {"train_size": 54_000, "steps": 21_100, "points": 12, "seeds": 5},
}
MINUTES = {"smoke": 0.1, "cpu": 20, "paper": 900}
CLAIMS = ("single-sample",)
WAYS: dict[str, tuple[int, dict[str, int]]] = {  # passes in a step, and how the model is called
    "M=1": (1, {}),
    "M=2": (2, {"samples": 2}),
    "M=4": (4, {"samples": 4}),
    "M=8": (8, {"samples": 8}),
    "8 draws": (1, {"draws": 8}),
}
MOMENTA = {"SGD": 0.0, "SGD with momentum": 0.9}
CLOSE = 1.1


def images(data: str, train_size: int, test_size: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return training and test data as pairs of tensors."""
    if data == "digits":
        return digits()[::2]
    found = mnist()
    parts = (found.train[:train_size], found.test[:test_size])
    return tuple((part.normalised(), part.targets) for part in parts)


def compute(
    data: str = "mnist",
    train_size: int = 10_000,
    test_size: int = 5_000,
    rates: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    steps: int = 780,
    points: int = 6,
    batch_size: int = 128,
    samples: int = 32,
    seeds: int = 2,
) -> dict[str, Any]:
    """Train in all ways with all learning rates; return error and NLL at several steps."""
    train, test = images(data, train_size, test_size)
    looks = sorted({round(steps * 2.0 ** (p - points)) for p in range(1, points + 1)} - {0})
    rows = []
    for optimizer, way, lr, seed in product(MOMENTA, WAYS, rates, range(seeds)):
        torch.manual_seed(seed)
        net = MLP(train[0][0].numel(), (128, 128), 10)
        model = variational(net, first_and_last)
        found = learn(model, train, test, way, MOMENTA[optimizer], lr, looks, batch_size, samples)
        rows += [
            {"optimizer": optimizer, "way": way, "lr": lr, "seed": seed, **row} for row in found
        ]
    return {"rows": rows}


def learn(
    model: Variational,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    way: str,
    momentum: float,
    lr: float,
    looks: Iterable[int],
    batch_size: int,
    samples: int,
) -> list[dict[str, Any]]:
    """Train a model; return its error and NLL after some numbers of steps, None if not finite."""
    x, y = train
    passes, keywords = WAYS[way]
    optimizer = torch.optim.SGD(model.param_groups(lr), momentum=momentum)
    rows, step = [], 0
    for end in looks:
        while step < end:
            chosen = torch.randint(len(x), (batch_size,))
            logits = model(x[chosen], **keywords)
            targets = y[chosen].expand(logits.shape[:-1])
            loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        error, nll = evaluate(model, test, samples)
        rows.append({"step": step, "passes": step * passes, "error": error, "nll": nll})
    return rows


@torch.no_grad()
def evaluate(
    model: Variational, test: tuple[Tensor, Tensor], samples: int
) -> tuple[float, float | None]:
    """Return error and NLL of the average over functions, the same draws each time."""
    x, y = test
    generator = torch.Generator().manual_seed(0)
    log_probs = average_log_probs(model.eval()(x, samples=samples, generator=generator))
    model.train()
    nll = F.nll_loss(log_probs, y).item()
    return (log_probs.argmax(-1) != y).double().mean().item(), nll if math.isfinite(nll) else None


def best(results: dict[str, Any], optimizer: str, way: str, quantity: str) -> dict[int, Any]:
    """Return for each step the least mean over seeds, and its learning rate."""
    found: dict[int, Any] = {}
    for (step, lr), values in means(results, optimizer, way, quantity).items():
        mean = statistics.fmean(values)
        if step not in found or mean < found[step][0]:
            found[step] = (mean, lr)
    return found


def means(
    results: dict[str, Any], optimizer: str, way: str, quantity: str
) -> dict[tuple[int, float], list[float]]:
    """Return the values of all seeds by step and learning rate, infinite where it diverged."""
    found: dict[tuple[int, float], list[float]] = {}
    for row in results["rows"]:
        if (row["optimizer"], row["way"]) == (optimizer, way):
            value = math.inf if row["nll"] is None else row[quantity]
            found.setdefault((row["step"], row["lr"]), []).append(value)
    return found


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return what the numbers say: of the paper's claim, and of draws in one pass."""
    rows = results["rows"]
    last = max(row["step"] for row in rows)
    half = max(row["step"] for row in rows if row["step"] <= last / 2)
    rates = {row["lr"] for row in rows}
    decided = last >= 500 and len(rates) > 3
    found = []
    scores = {
        (optimizer, way): best(results, optimizer, way, "nll")
        for optimizer, way in product(MOMENTA, WAYS)
    }
    for optimizer in MOMENTA:
        one, eight = (scores[optimizer, way] for way in ("M=1", "M=8"))
        ratio = {step: one[step][0] / eight[step][0] for step in (half, last)}
        good = ratio[last] <= CLOSE and one[last][1] <= eight[last][1]
        found.append(
            Verdict(
                "single-sample",
                good if decided else None,
                f"{optimizer}: at its best learning rate M=1 has {ratio[last]:.2f} times the NLL "
                f"of M=8 after {last} steps ({ratio[half]:.2f} after {half}); best rates "
                + ", ".join(f"{way} {scores[optimizer, way][last][1]:g}" for way in WAYS),
                f"{CLOSE:g} times at most, and a best rate that is not larger",
            )
        )
    for optimizer in MOMENTA:
        draws, eight = (scores[optimizer, way] for way in ("8 draws", "M=8"))
        ratio = {step: draws[step][0] / eight[step][0] for step in (half, last)}
        found.append(
            Verdict(
                "single-sample",
                ratio[last] <= CLOSE if decided else None,
                f"{optimizer}: 8 draws in one pass have {ratio[last]:.2f} times the NLL of M=8 "
                f"after as many steps, {last} ({ratio[half]:.2f} after {half}), at an eighth of "
                "the passes",
                f"{CLOSE:g} times at most, each at its best learning rate (our claim, not the "
                "paper's)",
            )
        )
    return found


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw error and NLL against learning rate, steps and passes from saved results."""
    from matplotlib.figure import Figure

    last = max(row["step"] for row in results["rows"])
    passes = {way: count for way, (count, _) in WAYS.items()}
    for quantity, title in (("error", "test error"), ("nll", "test NLL")):
        figure = Figure(figsize=(11, 6), layout="constrained")
        axes = figure.subplots(len(MOMENTA), 3, sharey="row", squeeze=False)
        for line, optimizer in zip(axes, MOMENTA, strict=True):
            for way in WAYS:
                style = {"marker": ".", "linestyle": "--" if "draws" in way else "-", "label": way}
                grid = means(results, optimizer, way, quantity)
                rates = sorted({lr for _, lr in grid})
                at_end = [statistics.fmean(grid[last, lr]) for lr in rates]
                line[0].plot(rates, at_end, **style)
                least = {
                    step: mean
                    for step, (mean, _) in best(results, optimizer, way, quantity).items()
                }
                line[1].plot(list(least), list(least.values()), **style)
                line[2].plot([step * passes[way] for step in least], list(least.values()), **style)
            line[0].set(ylabel=f"{title}, {optimizer}", yscale="log")
            for axis, label in zip(
                line,
                (f"learning rate, after {last} steps", "steps, best rate", "passes, best rate"),
                strict=True,
            ):
                axis.set(xscale="log", xlabel=label)
        axes[0][0].legend(fontsize="small")
        for ending in ("pdf", "png"):
            figure.savefig(folder / f"{quantity}.{ending}")


if __name__ == "__main__":
    run(sys.modules[__name__])
