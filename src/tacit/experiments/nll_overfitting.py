"""The claim `nll-overfitting`: trained for long, a classifier's NLL rises while its error does not.

    python -m tacit.experiments.nll_overfitting --out DIR

The supplement's figure on the need for scaling: a network with two hidden layers on synthetic data,
two classes that overlap a little, trained by gradient descent on the expected loss for many steps.
Left: training loss and error. Middle: validation NLL as it is, with the mean divided by log t as in
Theorem 2, and with a temperature from other data. Right: the norm of the mean against log t.
"""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.calibration import calibrate
from tacit.covariance import LowRank
from tacit.experiments.runner import Scales, run
from tacit.experiments.verdict import Verdict
from tacit.likelihood import Categorical
from tacit.prediction import evaluate
from tacit.variational import Variational, variational

SCALES: Scales = {"smoke": {"steps": 20, "samples": 4}, "cpu": {}, "paper": {}}
MINUTES = {"smoke": 0.1, "cpu": 2, "paper": 2}
CLAIMS = ("nll-overfitting",)
WAYS = {"raw": "as it is", "rescaled": "mean / log t", "tempered": "temperature"}
RISE = 1.5


def classes(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return two noisy half-moons, inputs (N, 2) and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (size,), generator=generator)
    angle = math.pi * torch.rand(size, generator=generator)
    side = 1.0 - 2.0 * labels
    moons = torch.stack([side * angle.cos() + labels - 0.5, side * angle.sin() - 0.25 * side], 1)
    return moons + 0.25 * torch.randn(moons.shape, generator=generator), labels


def compute(
    width: int = 64,
    rank: int = 10,
    train_size: int = 60,
    other_size: int = 2000,
    steps: int = 20_000,
    points: int = 24,
    lr: float = 0.1,
    samples: int = 100,
    seed: int = 0,
) -> dict[str, Any]:
    """Train, and look at the model at times that are spaced evenly in log t."""
    x, y = classes(train_size, seed)
    validation, held_out = classes(other_size, seed + 1), classes(other_size, seed + 2)
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )
    model = variational(net, {"*": LowRank(rank, 0.5)}, likelihood=Categorical())
    optimizer = torch.optim.SGD(model.param_groups(lr))
    times = {round(math.exp(p / points * math.log(steps))) for p in range(points + 1)}
    rows = []
    for step in range(1, steps + 1):
        loss = nn.functional.cross_entropy(model(x, draws=8), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in times:
            rows.append({"step": step, **look(model, (x, y), validation, held_out, step, samples)})
            model.train()
    return {"rows": rows}


def look(
    model: Variational,
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    step: int,
    samples: int,
) -> dict[str, float]:
    """Return what the figure shows of one time; the model is left as it was."""
    model.eval()

    def score(chosen: Variational) -> tuple[float, float]:
        generator = torch.Generator().manual_seed(0)
        found = evaluate(chosen, held_out, samples=samples, generator=generator)
        return found["nll"], 1 - found["accuracy"]

    rescaled = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in list(rescaled.module.parameters())[-2:]:  # the outputs are linear in them
            parameter.div_(max(1.0, math.log(step)))
    tempered = copy.deepcopy(model)
    calibrate(tempered, validation, samples=samples)
    raw, error = score(model)
    with torch.no_grad():
        train_loss = nn.functional.cross_entropy(model(train[0]), train[1]).item()
        squares = sum(p.double().square().sum().item() for p in model.module.parameters())
    return {
        "train_loss": train_loss,
        "error": error,
        "raw": raw,
        "rescaled": score(rescaled)[0],
        "tempered": score(tempered)[0],
        "norm": math.sqrt(squares),
    }


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return what the numbers say."""
    rows = results["rows"]
    last = rows[-1]
    least = {way: min(row[way] for row in rows) for way in WAYS}
    rise = {way: last[way] / least[way] for way in WAYS}
    late = [row for row in rows if row["step"] >= math.sqrt(last["step"])]
    fit = correlation([math.log(r["step"]) for r in late], [r["norm"] for r in late])
    error = last["error"] - min(row["error"] for row in rows)
    good = (
        rise["raw"] >= RISE
        and error <= 0.02
        and rise["tempered"] < math.sqrt(RISE)
        and least["tempered"] <= least["rescaled"]
        and fit > 0.95
    )
    return [
        Verdict(
            "nll-overfitting",
            good if last["step"] >= 5000 else None,
            f"NLL ends at {rise['raw']:.2f} times its least, {rise['rescaled']:.2f} with the mean "
            f"divided by log t, {rise['tempered']:.2f} with a temperature; the error ends "
            f"{100 * error:.1f} points above its least; the norm of the mean and log t correlate "
            f"with {fit:.3f}",
            f"NLL rises by {RISE:g} at least, by less than {math.sqrt(RISE):.2f} with a "
            "temperature, the error by 2 points at most (2,000 examples: a standard error of about "
            "0.5), a correlation of 0.95, and the least NLL with a temperature is not above that "
            "of the rescaled mean",
        )
    ]


def correlation(first: list[float], second: list[float]) -> float:
    """Return the correlation of two series; 0 if they are too short."""
    if len(first) < 3:
        return 0.0
    return float(torch.corrcoef(torch.tensor([first, second], dtype=torch.float64))[0, 1])


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw the three panels from saved results."""
    from matplotlib.figure import Figure

    rows = results["rows"]
    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.plot(steps, [row["train_loss"] for row in rows], label="training loss")
    left.plot(steps, [row["error"] for row in rows], label="validation error")
    left.set(title="The loss falls, the error stays", yscale="log")
    left.legend()
    for way, title in WAYS.items():
        middle.plot(steps, [row[way] for row in rows], label=title)
    middle.set(title="Validation NLL", yscale="log")
    middle.legend()
    right.plot(steps, [row["norm"] for row in rows], color="black")
    right.set(title="Norm of the mean")
    for axis in (left, middle, right):
        axis.set(xscale="log", xlabel="step")
    for ending in ("pdf", "png"):
        figure.savefig(folder / f"nll_overfitting.{ending}")


if __name__ == "__main__":
    run(sys.modules[__name__])
