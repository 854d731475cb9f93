"""Fits of one-dimensional data without, and with two explicit, regularizers."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support.figures import saved
from tacit.calling import Variational, variational
from tacit.scaling import initialize
from tacit.scaling.parametrization import NeuralTangent
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.verdict import Verdict
from tacit.training.objective import ELBO, GVI, ExpectedLoss, Objective
from tacit.weights.covariance import Covariance, LowRank, LowRankPlusDiagonal
from tacit.weights.prior import Prior

TITLES = {"ibvi": "implicit (IBVI)", "gvi": "explicit, W2 (GVI)", "kl": "explicit, KL (ELBO)"}
END = 3.0  # functions are plotted from -END to END; the data lie within 1.2
FITS = 0.1  # largest error of functions that fit, relative to the spread of the targets
# Shares of the prior's standard deviation: at most at the data, at least far from them.
COLLAPSED, KEPT = 0.2, 0.5
APART = 2.0  # smallest ratio of the standard deviations at the data, KL to IBVI


def observations() -> tuple[Tensor, Tensor]:
    """Return inputs, in two groups with a gap between them, and targets."""
    x = torch.cat([torch.linspace(-1.2, -0.5, 6), torch.linspace(0.5, 1.2, 6)])[:, None]
    return x, torch.sin(3 * x)


def make_model(width: int, covariance: Covariance, seed: int) -> Variational:
    """Return a network with two hidden layers, all weights random."""
    parametrization = NeuralTangent()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )
        initialize(net, parametrization)
        return variational(net, {"*": covariance}, parametrization=parametrization)


def compute(
    width: int = 128,
    rank: int = 20,
    steps: int = 6000,
    lr: float = 0.3,
    draws: int = 8,
    noise: float = 0.1,
    strength: float = 0.01,
    samples: int = 500,
    seed: int = 0,
) -> dict[str, Any]:
    """Train with each objective; return functions, means and standard deviations."""
    x, y = observations()
    data_size = len(x)
    # The loss is the squared error, so for observation noise of variance s^2 the ELBO weights KL
    # by 2 s^2 / N.
    choices: dict[str, tuple[Covariance, Callable[[Prior], Objective]]] = {
        "ibvi": (LowRank(rank), lambda prior: ExpectedLoss()),
        "gvi": (LowRank(rank), lambda prior: GVI(prior, strength)),
        "kl": (
            LowRankPlusDiagonal(rank), lambda prior: ELBO(prior, 2 * noise**2 / data_size),
        ),
    }  # fmt: skip
    found: dict[str, Any] = {
        "steps": steps,
        "noise": noise,
        "x": x[:, 0].tolist(),
        "y": y[:, 0].tolist(),
    }
    for name, (covariance, objective_from) in choices.items():
        model = make_model(width, covariance, seed)
        objective = objective_from(model.prior())
        generator = torch.Generator().manual_seed(seed)
        before = functions(model, samples, generator)
        optimizer = torch.optim.SGD(model.param_groups(lr), momentum=0.9)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
        for _ in range(steps):
            loss = (model(x, samples=draws, generator=generator) - y).square().mean()
            loss = objective(loss, model, data_size=data_size)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        found[name] = {"prior": before, "trained": functions(model, samples, generator)}
    return found


@torch.no_grad()
def functions(model: Variational, samples: int, generator: torch.Generator) -> dict[str, Any]:
    """Return mean, standard deviation and functions on a grid; spread and error at the data."""
    grid = torch.linspace(-END, END, 121)[:, None]
    weights = model.sample(samples, generator=generator)
    curves = model(grid, weights=weights)[..., 0]
    x, y = observations()
    at_data = model(x, weights=weights)[..., 0]
    return {
        "grid": grid[:, 0].tolist(),
        "mean": curves.mean(0).tolist(),
        "std": curves.std(0).tolist(),
        "functions": curves[:12].tolist(),
        "std_at_data": at_data.std(0).tolist(),
        "error_at_data": (at_data - y[:, 0]).square().mean().sqrt().item(),
    }


def kept_shares(found: dict[str, Any]) -> tuple[float, float]:
    """Return the shares of the prior's standard deviation kept at the data and far from them."""
    at_data = [sum(found[when]["std_at_data"]) for when in ("trained", "prior")]
    far = [found[when]["std"][0] + found[when]["std"][-1] for when in ("trained", "prior")]
    return at_data[0] / at_data[1], far[0] / far[1]


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return the verdicts on the claim."""
    shares = {name: kept_shares(results[name]) for name in TITLES}
    spread = torch.tensor(results["y"]).std().item()
    errors = {name: results[name]["trained"]["error_at_data"] / spread for name in TITLES}
    deviation = statistics.fmean(results["kl"]["trained"]["std_at_data"])
    at_data, far = shares["ibvi"]
    decided = results["steps"] >= 1000

    def verdict(subject: str, holds: bool, measured: str, criterion: str) -> Verdict:
        state = holds if decided else None
        return Verdict("regression-interpolates", state, measured, criterion, subject)

    return [
        verdict(
            "IBVI, deep network: all functions fit the data",
            errors["ibvi"] <= FITS and at_data <= COLLAPSED,
            f"root mean square error {errors['ibvi']:.1%} of the targets' spread; {at_data:.0%} of "
            "the prior's standard deviation left at the data",
            f"at most {FITS:.0%} and {COLLAPSED:.0%}",
        ),
        verdict(
            "IBVI, deep network: the prior is kept far from the data",
            far >= KEPT,
            f"{far:.0%} of its standard deviation left at x = -{END:g} and {END:g} (GVI "
            f"{shares['gvi'][1]:.0%}, KL {shares['kl'][1]:.0%})",
            f"at least {KEPT:.0%}",
        ),
        verdict(
            "KL: functions do not fit the data",
            shares["kl"][0] >= APART * at_data and deviation >= results["noise"] / 2,
            f"{shares['kl'][0]:.0%} of the prior's standard deviation left at the data (GVI "
            f"{shares['gvi'][0]:.0%}), {deviation:.3f}; root mean square error {errors['kl']:.0%} "
            "of the targets' spread",
            f"a standard deviation at the data of at least {APART:g} times IBVI's, relative to the "
            f"prior, and of at least half the observation noise, {results['noise'] / 2:g}",
        ),
    ]


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw the three fits side by side from saved results, each with its prior."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots(1, len(TITLES), sharey=True)
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        for when, color in (("prior", "gray"), ("trained", "tab:blue")):
            found = results[name][when]
            low, high = (
                [m + sign * 2 * s for m, s in zip(found["mean"], found["std"], strict=True)]
                for sign in (-1, 1)
            )
            label = f"{when}, two standard deviations"
            axis.fill_between(found["grid"], low, high, color=color, alpha=0.2, label=label)
        trained = results[name]["trained"]
        for function in trained["functions"]:
            axis.plot(trained["grid"], function, color="tab:blue", linewidth=0.5, alpha=0.7)
        axis.plot(trained["grid"], trained["mean"], color="black", linewidth=1.5)
        axis.plot(results["x"], results["y"], ".", color="tab:orange")
        axis.set(title=title, xlabel="x", ylim=(-4, 4))
    axes[0].legend(loc="upper left", fontsize="small")
    for ending in ("pdf", "png"):
        saved(figure, folder / f"implicit_vs_explicit.{ending}")


EXPERIMENT = Experiment(
    name="implicit_vs_explicit",
    title="The claim `regression-interpolates`: implicit against two explicit regularizers.",
    about="""
    The paper's first figure: networks with two hidden layers on 12 observations of a
    one-dimensional input, trained from the same prior on the expected loss alone (IBVI), with the
    squared 2-Wasserstein distance to the prior as a regularizer (GVI), and with the KL divergence
    from it (the ELBO). KL requires a non-singular covariance, so there a diagonal is added to the
    low rank.
    """,
    claims=("regression-interpolates",),
    scales={
        "smoke": {"width": 16, "rank": 5, "steps": 3, "samples": 20},
        "cpu": {},
        "paper": {},
    },
    minutes={"smoke": 0.1, "cpu": 5, "paper": 5},
    needs="nothing",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
