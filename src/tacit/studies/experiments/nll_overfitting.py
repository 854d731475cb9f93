"""Test NLL of a classifier in long training, with and without rescaling."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support.figures import saved
from tacit.calling import Variational, variational
from tacit.inference.calibration import calibrate
from tacit.inference.scores import evaluate
from tacit.likelihood import Categorical
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.verdict import Verdict
from tacit.weights.covariance import LowRank

WAYS = {"raw": "unscaled", "rescaled": "last mean / log t", "tempered": "temperature"}
RISE = 1.5  # smallest ratio of last to lowest NLL that counts as a rise


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
    """Train, and score the model at times spaced evenly in log t."""
    x, y = classes(train_size, seed)
    validation, held_out = classes(other_size, seed + 1), classes(other_size, seed + 2)
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )
    likelihood = Categorical(averaging="log_probs")  # as in the paper
    model = variational(net, {"*": LowRank(rank, 0.5)}, likelihood=likelihood)
    optimizer = torch.optim.SGD(model.param_groups(lr))
    times = {round(math.exp(p / points * math.log(steps))) for p in range(points + 1)}
    rows = []
    for step in range(1, steps + 1):
        loss = nn.functional.cross_entropy(model(x, draws=8), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in times:
            rows.append({"step": step, **score(model, (x, y), validation, held_out, step, samples)})
            model.train()
    return {"rows": rows}


def score(
    model: Variational,
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    step: int,
    samples: int,
) -> dict[str, float]:
    """Return losses, error and norm at one time; the parameters are not changed."""
    model.eval()

    def nll_and_error(chosen: Variational) -> tuple[float, float]:
        generator = torch.Generator().manual_seed(0)
        found = evaluate(chosen, held_out, samples=samples, generator=generator)
        return found["nll"], 1 - found["accuracy"]

    rescaled = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in list(rescaled.module.parameters())[-2:]:  # outputs are linear in them
            parameter.div_(max(1.0, math.log(step)))
    tempered = copy.deepcopy(model)
    calibrate(tempered, validation, samples=samples)
    raw, error = nll_and_error(model)
    with torch.no_grad():
        train_loss = nn.functional.cross_entropy(model(train[0]), train[1]).item()
        squares = sum(p.double().square().sum().item() for p in model.module.parameters())
    return {
        "train_loss": train_loss,
        "error": error,
        "raw": raw,
        "rescaled": nll_and_error(rescaled)[0],
        "tempered": nll_and_error(tempered)[0],
        "norm": math.sqrt(squares),
    }


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return the verdicts on the claim."""
    rows = results["rows"]
    last = rows[-1]
    least = {way: min(row[way] for row in rows) for way in WAYS}
    rise = {way: last[way] / least[way] for way in WAYS}
    error = last["error"] - min(row["error"] for row in rows)
    late = [row for row in rows if row["step"] >= math.sqrt(last["step"])]
    slopes = [slope(part) for part in (late[: len(late) // 2 + 1], late[len(late) // 2 :])]
    early = [row for row in rows if row["step"] < last["step"] / 10]
    below = [row["tempered"] <= row["rescaled"] for row in early]
    decided = last["step"] >= 5000

    def verdict(subject: str, holds: bool, measured: str, criterion: str) -> Verdict:
        return Verdict("nll-overfitting", holds if decided else None, measured, criterion, subject)

    return [
        verdict(
            "NLL rises while the error does not",
            rise["raw"] >= RISE and error <= 0.02,
            f"NLL ends at {rise['raw']:.2f} times its minimum, the error {100 * error:.1f} points "
            "above its minimum",
            f"at least {RISE:g} times, and at most 2 points (the standard error on 2,000 examples "
            "is about 0.5)",
        ),
        verdict(
            "rescaling and a temperature prevent the rise",
            all(rise[way] < math.sqrt(RISE) for way in ("rescaled", "tempered")),
            f"NLL ends at {rise['rescaled']:.2f} times its minimum with the last layer's mean "
            f"divided by log t, at {rise['tempered']:.2f} times with a temperature",
            f"less than {math.sqrt(RISE):.2f} times",
        ),
        verdict(
            "a temperature is better than rescaling before the asymptote",
            sum(below) >= 0.9 * len(below),
            f"lower NLL at {sum(below)} of {len(below)} times in the first tenth of training",
            "at nine tenths of them: in the first steps both are near chance",
        ),
        verdict(
            "the norm of the mean grows like log t",
            min(slopes) > 0 and max(slopes) / min(slopes) <= 1.5,
            "it grows per unit of log t by "
            + " and ".join(f"{value:.2f}" for value in slopes)
            + " in the first and the second half of late training",
            "slopes within a factor of 1.5",
        ),
    ]


def slope(rows: list[dict[str, float]]) -> float:
    """Return the least-squares slope of the norm against log t; 0 for fewer than two rows."""
    if len(rows) < 2:
        return 0.0
    times = torch.tensor([math.log(row["step"]) for row in rows], dtype=torch.float64)
    norms = torch.tensor([row["norm"] for row in rows], dtype=torch.float64)
    times, norms = times - times.mean(), norms - norms.mean()
    return float(times @ norms / (times @ times))


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw the three panels from saved results."""
    from matplotlib.figure import Figure

    rows = results["rows"]
    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.plot(steps, [row["train_loss"] for row in rows], label="training loss")
    left.plot(steps, [row["error"] for row in rows], label="test error")
    left.set(title="The loss falls, the error stays", yscale="log")
    left.legend()
    for way, title in WAYS.items():
        middle.plot(steps, [row[way] for row in rows], label=title)
    middle.set(title="Test NLL", yscale="log")
    middle.legend()
    right.plot(steps, [row["norm"] for row in rows], color="black")
    right.set(title="Norm of the mean")
    for axis in (left, middle, right):
        axis.set(xscale="log", xlabel="step")
    for ending in ("pdf", "png"):
        saved(figure, folder / f"nll_overfitting.{ending}")


EXPERIMENT = Experiment(
    name="nll_overfitting",
    title="The claim `nll-overfitting`: in long training the NLL rises while the error does not.",
    about="""
    The supplement's figure on the need for rescaling: a network with two hidden layers on synthetic
    data, two slightly overlapping classes, trained by gradient descent on the expected loss for
    many steps. Left: training loss and test error. Middle: test NLL unscaled, with the mean of the
    last layer, in which the outputs are linear, divided by log t as in Theorem 2, and with a
    temperature fitted on validation data. Right: the norm of the mean against log t.

    The criterion for "grows as log t" was changed after a first run: at first a correlation of at
    least 0.95, which faster growth also has; now the ratio of the slopes late and early in
    training.
    """,
    claims=("nll-overfitting",),
    scales={"smoke": {"steps": 20, "samples": 4}, "cpu": {}, "paper": {}},
    minutes={"smoke": 0.1, "cpu": 2, "paper": 2},
    needs="nothing",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
