"""Minima in two dimensions, and the ones that gradient descent selects."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit._support.figures import saved
from tacit.calling import variational
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.linear_theory import descend, squared_error
from tacit.studies.experiments.verdict import Verdict
from tacit.theory import Normal, regression
from tacit.weights.covariance import FullRank

X, Y = torch.tensor([[1.0, 0.6]], dtype=torch.float64), torch.tensor([1.2], dtype=torch.float64)
STARTS = ((-1.0, 1.5), (-1.2, -0.6), (0.6, -1.4), (1.8, 1.6))
PRIOR = Normal(torch.tensor([-0.4, -0.6]), torch.tensor([[0.45, 0.1], [-0.15, 0.4]]))

ROUNDING = 1e-6  # the prior is in single precision


def compute(steps: int = 40, lr: float = 0.15) -> dict[str, Any]:
    """Train weights from several starting points, and a distribution from the prior."""
    points = []
    for start in STARTS:
        w = torch.tensor(start, dtype=torch.float64)
        path = [w.tolist()]
        for _ in range(steps):
            w = w - lr * X.T @ (X @ w - Y)
            path.append(w.tolist())
        points.append(path)
    model = variational(nn.Linear(2, 1, bias=False).double(), {"": FullRank()})
    distribution = model.distributions[""]
    with torch.no_grad():
        distribution.mean["weight"].copy_(PRIOR.mean[None])
        distribution.factors["weight"].copy_(PRIOR.factor.T[:, None, :])
    visited = list(islice(descend(model, lambda: squared_error(model, X, Y), lr), steps + 1))
    generator = torch.Generator().manual_seed(1)
    others = [regression.random_minimizer(X, Y, 2, generator=generator) for _ in range(3)]
    return {
        "points": points,
        "distributions": [_plain(q) for q in visited],
        "limit": _plain(regression.limit(X, Y, PRIOR)),
        "others": [_plain(q) for q in others],
    }


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdict on the claim: what is left of the way is what the closed form leaves."""
    ends = {name: torch.tensor(results["limit"][name]) for name in ("mean", "factor")}
    begin, left = (
        max((torch.tensor(q[name]) - end).norm().item() for name, end in ends.items())
        for q in (results["distributions"][0], results["distributions"][-1])
    )
    steps = len(results["distributions"]) - 1
    theory = begin * abs(1 - arguments["lr"] * X.square().sum().item()) ** steps
    return [
        Verdict(
            "regression-limit",
            left < theory + ROUNDING,
            f"in two dimensions mean and factor end {left:.1e} from the limit; they start "
            f"{begin:.2f} from it; the closed form leaves {theory:.1e} after {steps} steps",
            "no further from the limit than the closed form of gradient descent leaves after as "
            "many steps, up to rounding in single precision",
            "two dimensions",
            f"{left:.1e} left",
        )
    ]


def _plain(q: Normal) -> dict[str, Any]:
    return {"mean": q.mean.tolist(), "factor": q.factor.tolist()}


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw both panels from saved results."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    for axis in (left, right):
        _draw_loss(axis)
    left.set_title("A network: a line of minima")
    for path in results["points"]:
        axis_x, axis_y = zip(*path, strict=True)
        left.plot(axis_x, axis_y, "o-", color="tab:blue", markersize=2.5, linewidth=1)
        left.plot(*path[0], "o", color="black", markersize=4)
        left.plot(*path[-1], "*", color="tab:orange", markersize=10)
    right.set_title("A distribution: a family of minima")
    for other in results["others"]:
        right.plot(*_ellipse(other), color="gray", linewidth=3, alpha=0.6)
    visited = results["distributions"]
    for q in visited[1:-1:3]:
        right.plot(*_ellipse(q), color="tab:blue", linewidth=0.8)
    right.plot(*_ellipse(visited[0]), color="black", label="prior")
    right.plot(*_ellipse(visited[-1]), color="tab:orange", linewidth=3, label="trained")
    right.plot([], [], color="gray", linewidth=3, alpha=0.6, label="other minima")
    right.legend(loc="upper left", fontsize="small")
    for ending in ("pdf", "png"):
        saved(figure, folder / f"loss_landscape.{ending}")


def _draw_loss(axis: Any) -> None:
    ticks = torch.linspace(-2, 2.4, 120, dtype=torch.float64)
    first, second = torch.meshgrid(ticks, ticks, indexing="xy")
    loss = (X[0, 0] * first + X[0, 1] * second - Y).square() / 2
    axis.contourf(first, second, loss.sqrt(), levels=14, cmap="Greys", alpha=0.5)
    axis.plot(ticks, (Y - X[0, 0] * ticks) / X[0, 1], "--", color="tab:red", linewidth=1)
    axis.set(xlim=(-2, 2.4), ylim=(-2, 2.4), xlabel="$w_1$", ylabel="$w_2$", aspect="equal")


def _ellipse(q: dict[str, Any], deviations: float = 2.0) -> tuple[list[float], list[float]]:
    """Return the contour at some standard deviations: the image of a circle under S."""
    angle = torch.linspace(0, 2 * torch.pi, 100, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()])
    mean, factor = (torch.tensor(q[key], dtype=torch.float64) for key in ("mean", "factor"))
    outline = mean[:, None] + deviations * factor @ circle
    return outline[0].tolist(), outline[1].tolist()


EXPERIMENT = Experiment(
    name="loss_landscape",
    figure="supplement, loss landscape",
    title="The claim `regression-limit` in two dimensions: which of many minima training finds.",
    about="""
    The supplement's first figure. Left: the loss of a linear model with two weights has a line of
    minima; gradient descent converges to the one closest to its starting point. Right: the expected
    loss of a distribution over the weights has a family of minima, all distributions on that line;
    gradient descent converges to the one closest to the prior.
    """,
    caption="Paths of gradient descent on the loss of two weights, and on the expected loss of a "
    "distribution over them",
    claims=("regression-limit",),
    scales={"smoke": {"steps": 4}, "cpu": {}, "paper": {}},
    minutes={"smoke": 0.1, "cpu": 0.1, "paper": 0.1},
    needs="nothing",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
