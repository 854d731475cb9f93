"""The claim `nll-overfitting`: trained for long, a classifier's NLL rises while its error does not.

    python -m tacit.experiments.nll_overfitting --out DIR

The supplement's figure on the need for scaling: a network with two hidden layers on synthetic data,
two classes that overlap a little, trained by gradient descent on the expected loss for many steps.
Left: training loss and test error. Middle: test NLL as it is, with the mean of the last layer, in
which outputs are linear, divided by log t as in Theorem 2, and with a temperature from validation
data. Right: the norm of the mean against log t.

What "grows as log t" means was changed after a first run: at first a correlation of at least 0.95,
which faster growth has too; now the slope late in training over that early.
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
NEEDS = "nothing"
CLAIMS = ("nll-overfitting",)
WAYS = {"raw": "as it is", "rescaled": "last mean / log t", "tempered": "temperature"}
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
    error = last["error"] - min(row["error"] for row in rows)
    late = [row for row in rows if row["step"] >= math.sqrt(last["step"])]
    slopes = [slope(part) for part in (late[: len(late) // 2 + 1], late[len(late) // 2 :])]
    early = [row for row in rows if row["step"] < last["step"] / 10]
    below = [row["tempered"] <= row["rescaled"] for row in early]
    decided = last["step"] >= 5000

    def verdict(subject: str, holds: bool, measured: str, asked: str) -> Verdict:
        return Verdict("nll-overfitting", holds if decided else None, measured, asked, subject)

    return [
        verdict(
            "NLL rises while the error doesn't",
            rise["raw"] >= RISE and error <= 0.02,
            f"NLL ends at {rise['raw']:.2f} times its least, the error {100 * error:.1f} points "
            "above its least",
            f"{RISE:g} times at least, and 2 points at most (of 2,000 examples, a standard error "
            "of about 0.5)",
        ),
        verdict(
            "rescaling and a temperature stop it",
            all(rise[way] < math.sqrt(RISE) for way in ("rescaled", "tempered")),
            f"NLL ends at {rise['rescaled']:.2f} times its least with the last layer's mean "
            f"divided by log t, at {rise['tempered']:.2f} with a temperature",
            f"less than {math.sqrt(RISE):.2f} times",
        ),
        verdict(
            "a temperature is better before the asymptote",
            sum(below) >= 0.9 * len(below),
            f"the NLL is smaller at {sum(below)} of {len(below)} times before a tenth of the steps",
            "at nine tenths of them: in the first steps all is near chance",
        ),
        verdict(
            "the mean's norm grows like log t",
            min(slopes) > 0 and max(slopes) / min(slopes) <= 1.5,
            "for each factor of e in t it grows by "
            + " and then by ".join(f"{value:.2f}" for value in slopes)
            + ", in the first and the second half of what is late",
            "slopes within a factor of 1.5",
        ),
    ]


def slope(rows: list[dict[str, float]]) -> float:
    """Return by how much the norm grows with log t, by least squares; 0 from fewer than two."""
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
        figure.savefig(folder / f"nll_overfitting.{ending}")


if __name__ == "__main__":
    run(sys.modules[__name__])
