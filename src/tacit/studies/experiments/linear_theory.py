"""Training of linear models against the closed forms of the theory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support.figures import saved
from tacit.calling import Variational, variational
from tacit.calling.moments import expected_squared_error, output_moments
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.verdict import Verdict
from tacit.theory import (
    Normal,
    classification,
    null_projection,
    range_projection,
    regression,
    squared_wasserstein_by_factors,
)
from tacit.weights.covariance import LowRank

P, N = 8, 4  # numbers of parameters and examples
EQUAL, RELATIVE = 1e-10, 1e-8  # rounding error in double precision, of numbers and of ratios


def compute(
    steps: int = 200,
    decades: int = 4,
    minimizers: int = 2000,
    rank: int = 3,
    lr: float = 0.3,
    seed: int = 2,
) -> dict[str, Any]:
    """Train linear models with the library and evaluate the closed forms."""
    torch.manual_seed(seed)
    X = nn.functional.normalize(torch.randn(N, P, dtype=torch.float64))
    x = torch.randn(P, dtype=torch.float64)
    model = linear_model(rank)
    prior = state(model)
    truth = prior.mean + prior.factor @ torch.randn(rank, dtype=torch.float64)
    labels = torch.tensor([1.0, -1.0] * (N // 2), dtype=torch.float64)
    return {
        "trajectory": _trajectory(model, X, X @ truth, x, steps, lr),
        "error_and_variance": _error_and_variance(prior, X, x, steps, lr),
        "distances": _distances(prior, X, X @ truth, minimizers),
        "margin": _margin(prior, X, labels, decades, lr),
    }


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts on the claims."""
    path, margin = results["trajectory"], results["margin"]
    apart = max(
        abs(a - b)
        for name in ("mean", "variance")
        for a, b in zip(path[f"trained_{name}"], path[f"theory_{name}"], strict=True)
    )
    left = abs(path["trained_mean"][-1] - path["limit_mean"][0])
    begin = abs(path["trained_mean"][0] - path["limit_mean"][0])
    closest = results["distances"]["ours"] <= min(results["distances"]["others"])
    both = results["error_and_variance"]
    gap = max(
        abs(error - variance) / variance
        for error, variance in zip(both["error"], both["variance"], strict=True)
    )
    return [
        Verdict(
            "regression-limit",
            apart < EQUAL and closest,
            f"training and theory differ by at most {apart:.1e} at any step; {left / begin:.1%} of "
            f"the distance to the limit is left; closer to the prior than "
            f"{len(results['distances']['others'])} other minimisers: {'yes' if closest else 'no'}",
            f"equal to the closed form at every step up to rounding ({EQUAL:g} in double "
            "precision), and no other minimiser is closer to the prior",
            number=f"{apart:.0e} from theory",
        ),
        Verdict(
            "error-equals-variance-sgd",
            gap < RELATIVE,
            f"error and variance differ by at most {gap:.1e} of the variance",
            f"equal at every step up to rounding, {RELATIVE:g} of the variance",
            "error and variance",
            f"{gap:.0e} apart",
        ),
        _trace(both, arguments["lr"]),
        *_classification(margin),
    ]


def _trace(both: dict[str, Any], lr: float) -> Verdict:
    """Return the verdict on the trace of the covariance."""
    traces = both.get("trace", [])
    grown = max((b - a for a, b in pairwise(traces)), default=math.nan)
    return Verdict(
        "error-equals-variance-sgd",
        grown <= EQUAL if traces else None,
        f"largest increase of the trace in a step: {grown:.1e}",
        f"none in any step, up to rounding, at a learning rate of {lr:g}, below 1 / lambda_max = "
        f"{both.get('largest_rate', math.nan):.2f}",
        "trace of the covariance",
        f"{grown:.0e} at most" if traces else "",
        "" if traces else "the run lacks the traces",
    )


def _classification(margin: dict[str, list[float]]) -> list[Verdict]:
    """Return the verdicts on classification, whose limits are approached like 1 / log t."""
    steps, direction, variance = margin["step"], margin["direction"], margin["variance"]
    bounded = [gap * math.log(t) for gap, t in zip(direction, steps, strict=True)]
    half = len(steps) // 2
    grown = max(bounded[half:]) / max(bounded[:half]) if half else math.inf
    falls = all(b < a for a, b in pairwise(variance))
    lacking = "" if steps[-1] >= 1000 else f"{steps[-1]:.0f} steps, a limit of 1 / log t"
    scales = margin.get("scale", [])
    scaled = [abs(s - 1) * math.log(t) for s, t in zip(scales, steps, strict=False)]
    bounded_growth = bool(scaled) and (
        abs(scales[-1] - 1) < abs(scales[0] - 1)
        and scaled[-1] - scaled[half] < abs(scaled[half] - scaled[0])
    )
    return [
        Verdict(
            "classification-max-margin",
            direction[-1] < direction[0] and grown <= 1,
            f"distance between the directions of mean and max-margin vector: {direction[0]:.3f} "
            f"after {steps[0]:.0f} steps, {direction[-1]:.3f} after {steps[-1]:.0f}; times log t "
            f"{bounded[0]:.2f} and {bounded[-1]:.2f}",
            "it falls, and times log t it is no larger in the second half of the times than in "
            "the first: the theory's rate is 1 / log t",
            "direction",
            f"{direction[-1]:.3f} apart",
            lacking,
        ),
        Verdict(
            "classification-max-margin",
            bounded_growth if scales else None,
            "norm of the mean divided by log t and by that of the max-margin vector: "
            + (f"{scales[0]:.2f} after {steps[0]:.0f} steps, {scales[-1]:.2f} at the end"
               if scales else "not recorded"),
            "its distance to 1 falls and, times log t, approaches a bound: it grows less in the "
            "second half of the times, evenly spaced in log t, than in the first",
            "scale",
            f"{scales[-1]:.2f} times" if scales else "",
            lacking if scales else "the run lacks the norms of the means",
        ),
        Verdict(
            "classification-collapse",
            falls and margin["null"][-1] < EQUAL,
            f"the variance at the support vectors falls to {variance[-1] / variance[0]:.3f} of its "
            f"value after {steps[0]:.0f} steps; the factor in the null space moves by "
            f"{margin['null'][-1]:.1e}",
            "the variance falls at every time, and the factor in the null space moves by rounding "
            f"error only, {EQUAL:g}",
            number=f"{variance[-1] / variance[0]:.3f} of it left",
            lacking=lacking,
        ),
    ]  # fmt: skip


def linear_model(rank: int) -> Variational:
    """Return a linear model of P inputs with random weights."""
    return variational(nn.Linear(P, 1, bias=False).double(), {"": LowRank(rank)})


def state(model: Variational) -> Normal:
    """Return the distribution of the weights in the form of `tacit.theory`."""
    distribution = model.distributions[""]
    return Normal(distribution.dense_mean(), distribution.dense_factor())


def descend(model: Variational, loss: Callable[[], Tensor], lr: float) -> Iterator[Normal]:
    """Yield the distribution before training and after each step of SGD, endlessly."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    while True:
        yield state(model)
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def squared_error(model: Variational, X: Tensor, y: Tensor) -> Tensor:
    """Return the paper's expected loss of regression: half the sum of squared errors."""
    return expected_squared_error(*output_moments(model, X), y[:, None]) * len(y) / 2


def exponential(model: Variational, X: Tensor, y: Tensor) -> Tensor:
    """Return the expected exponential loss."""
    mean, variance = output_moments(model, X)
    return torch.exp(-y * mean[:, 0] + variance[:, 0] / 2).sum()


def _trajectory(
    model: Variational, X: Tensor, y: Tensor, x: Tensor, steps: int, lr: float
) -> dict[str, list[float]]:
    prior = state(model)
    batches = [(slice(None), lr)] * steps
    theirs = [prior, *regression.gradient_descent(X, y, prior, batches)]
    ours = _take(descend(model, lambda: squared_error(model, X, y), lr), steps + 1)
    end = regression.limit(X, y, prior)
    return {
        **{f"trained_{k}": v for k, v in _predictions(ours, x).items()},
        **{f"theory_{k}": v for k, v in _predictions(theirs, x).items()},
        **{f"limit_{k}": v for k, v in _predictions([end], x).items()},
    }


def _error_and_variance(
    prior: Normal, X: Tensor, x: Tensor, steps: int, lr: float
) -> dict[str, Any]:
    # The error is linear in the noise of the true weights. Its expected square is therefore a sum
    # over the columns of S0, with one training run for each.
    errors = torch.zeros(steps + 1, dtype=torch.float64)
    variances: list[float] = []
    for column in prior.factor.T:
        truth = prior.mean + column
        model = linear_model(prior.factor.shape[1])
        _set(model, prior)
        loss = _loss(squared_error, model, X, X @ truth)
        visited = _take(descend(model, loss, lr), steps + 1)
        errors += torch.stack([(x @ (q.mean - truth)).square() for q in visited])
        variances = _predictions(visited, x)["variance"]
    largest = torch.linalg.eigvalsh(X.T @ X).max().item()
    traces = [q.factor.square().sum().item() for q in visited]
    return {
        "error": errors.tolist(),
        "variance": variances,
        "trace": traces,
        "largest_rate": 1 / largest,
    }


def _distances(prior: Normal, X: Tensor, y: Tensor, count: int) -> dict[str, Any]:
    """Return squared distances to the prior: of the limit, and of other minimisers.

    The others lie at random places between the limit and random minimisers.
    """
    ours = regression.limit(X, y, prior)
    generator = torch.Generator().manual_seed(0)
    rank = prior.factor.shape[1]
    others = []
    for _ in range(count):
        other = regression.random_minimizer(X, y, rank, generator=generator)
        step = torch.rand((), generator=generator, dtype=torch.float64)
        between = Normal(
            ours.mean + step * (other.mean - ours.mean),
            ours.factor + step * (other.factor - ours.factor),
        )
        others.append(squared_wasserstein_by_factors(between, prior))
    return {"ours": squared_wasserstein_by_factors(ours, prior), "others": others}


def _margin(prior: Normal, X: Tensor, y: Tensor, decades: int, lr: float) -> dict[str, list[float]]:
    solution = classification.max_margin(X, y)
    on, null = range_projection(X), null_projection(X)
    model = linear_model(prior.factor.shape[1])
    _set(model, prior)
    found: dict[str, list[float]] = {
        name: [] for name in ("step", "direction", "scale", "variance", "null")
    }
    wanted = {round(10 ** (k / 4)) for k in range(4, 4 * decades + 1)}
    for t, q in enumerate(descend(model, _loss(exponential, model, X, y), lr)):
        if t in wanted:
            mean = on @ q.mean
            direction = mean / mean.norm() - solution.vector / solution.vector.norm()
            found["step"].append(float(t))
            found["direction"].append(direction.norm().item())
            scale = mean.norm() / (math.log(t) * solution.vector.norm())
            found["scale"].append(scale.item())
            found["variance"].append(q.predict(X[solution.support])[1].max().item())
            found["null"].append((null @ (q.factor - prior.factor)).norm().item())
        if t == max(wanted):
            break
    return found


def _loss(
    loss: Callable[[Variational, Tensor, Tensor], Tensor], model: Variational, X: Tensor, y: Tensor
) -> Callable[[], Tensor]:
    return lambda: loss(model, X, y)


def _set(model: Variational, prior: Normal) -> None:
    distribution = model.distributions[""]
    with torch.no_grad():
        distribution.mean["weight"].copy_(prior.mean[None, :])
        distribution.factors["weight"].copy_(prior.factor.T[:, None, :])


def _take(iterates: Iterator[Normal], count: int) -> list[Normal]:
    return [next(iterates) for _ in range(count)]


def _predictions(visited: list[Normal], x: Tensor) -> dict[str, list[float]]:
    moments = [q.predict(x[None]) for q in visited]
    return {
        "mean": [mean.item() for mean, _ in moments],
        "variance": [variance.item() for _, variance in moments],
    }


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw four panels from saved results."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.4), layout="constrained")
    axes = figure.subplots(2, 2)
    _draw_trajectory(axes[0, 0], results["trajectory"])
    _draw_error(axes[0, 1], results["error_and_variance"])
    _draw_distances(axes[1, 0], results["distances"])
    _draw_margin(axes[1, 1], results["margin"])
    for ending in ("pdf", "png"):
        saved(figure, folder / f"linear_theory.{ending}")


def _draw_trajectory(axis: Any, found: dict[str, list[float]]) -> None:
    steps = range(len(found["trained_mean"]))
    for sign, label in ((-2, None), (0, "theory"), (2, None)):
        theory, trained, end = (
            [
                mean + sign * math.sqrt(variance)
                for mean, variance in zip(
                    found[f"{name}_mean"], found[f"{name}_variance"], strict=True
                )
            ]
            for name in ("theory", "trained", "limit")
        )
        axis.plot(steps, theory, color="black", linewidth=1, label=label)
        axis.plot(
            steps[::8],
            trained[::8],
            "o",
            color="tab:blue",
            markersize=3,
            label="trained" if label else None,
        )
        axis.axhline(end[0], color="tab:orange", linestyle=":", label="limit" if label else None)
    axis.set(title="A prediction, ± 2 standard deviations", xlabel="step", ylabel="f(x)")
    axis.legend(fontsize="small")


def _draw_error(axis: Any, found: dict[str, list[float]]) -> None:
    steps = range(len(found["error"]))
    axis.plot(steps, found["variance"], color="black", linewidth=1, label="variance")
    axis.plot(
        steps[::8],
        found["error"][::8],
        "o",
        color="tab:blue",
        markersize=3,
        label="expected squared error",
    )
    axis.set(title="Error equals variance at every step", xlabel="step", yscale="log")
    axis.legend(fontsize="small")


def _draw_distances(axis: Any, found: dict[str, Any]) -> None:
    axis.hist(found["others"], bins=50, color="lightgray", label="other minimisers")
    axis.axvline(found["ours"], color="tab:blue", label="limit of training")
    axis.set(title="Distance to the prior among minimisers", xlabel="squared 2-Wasserstein")
    axis.legend(fontsize="small")


def _draw_margin(axis: Any, found: dict[str, list[float]]) -> None:
    steps = found["step"]
    axis.loglog(steps, found["direction"], "o-", markersize=3, label="distance to max margin")
    scale = found["direction"][-1] * math.log(steps[-1])
    axis.loglog(steps, [scale / math.log(t) for t in steps], ":", color="black", label="1 / log t")
    axis.loglog(steps, found["variance"], "o-", markersize=3, label="variance at support vectors")
    axis.set(title="Classification: margin and collapse", xlabel="step")
    axis.legend(fontsize="small")


EXPERIMENT = Experiment(
    name="linear_theory",
    figure="Theorems 1 and 2, non-asymptotic errors",
    title="Theorems 1 and 2 and the non-asymptotic ones: training against closed forms.",
    about="""
    Linear models, trained by the library with torch's SGD on the exact expected loss, against the
    closed forms of `tacit.theory`: claims `regression-limit`, `error-equals-variance-sgd`,
    `classification-max-margin`, `classification-collapse`.
    """,
    caption="A prediction and its standard deviation during training; error and variance; "
    "distance to the prior of all minimisers; distance to the max-margin direction and "
    "variance in classification",
    claims=(
        "regression-limit",
        "error-equals-variance-sgd",
        "classification-max-margin",
        "classification-collapse",
    ),
    scales={
        "smoke": {"steps": 10, "decades": 2, "minimizers": 20},
        "cpu": {},
        "paper": {"decades": 5},
    },
    minutes={"smoke": 0.1, "cpu": 0.3, "paper": 2},
    needs="nothing",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
