"""Further claims of the theory, evaluated in linear models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit._support.figures import saved
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.linear_theory import descend, linear_model, squared_error, state
from tacit.studies.experiments.verdict import Verdict
from tacit.theory import (
    Normal,
    classification,
    null_projection,
    null_projection_from_factor,
    regression,
    squared_wasserstein,
    squared_wasserstein_by_subspaces,
)
from tacit.theory.subspaces import row_basis

P, N = 8, 4  # numbers of parameters and examples, as in `linear_theory`
RELATIVE, ROOTS = 1e-8, 1e-6  # rounding errors in double precision; of roots of matrices
TIMES = tuple(0.03 * 1.35**k for k in range(24))


def compute(
    steps: int = 800, decades: int = 5, rank: int = 3, lr: float = 0.2, seed: int = 2
) -> dict[str, Any]:
    """Evaluate both sides of each claim."""
    torch.manual_seed(seed)
    X = torch.nn.functional.normalize(torch.randn(N, P, dtype=torch.float64))
    model = linear_model(rank)
    prior = state(model)
    y = X @ torch.randn(P, dtype=torch.float64)
    z = torch.randn(rank, 5, dtype=torch.float64)
    members = prior.mean[:, None] + prior.factor @ z
    for _ in range(steps):
        members = members - lr * X.T @ (X @ members - y[:, None])
    *_, trained = islice(descend(model, lambda: squared_error(model, X, y), lr), steps + 1)
    limit = regression.limit(X, y, prior)
    return {
        "steps": steps,
        "limit": (limit.mean[:, None] + limit.factor @ z).flatten().tolist(),
        "members": members.flatten().tolist(),
        "draws": (trained.mean[:, None] + trained.factor @ z).flatten().tolist(),
        "flow": _flow(prior, X),
        "subspaces": _subspaces(prior, X, y),
        "generalized": _generalized(prior, decades),
        "null_space": _null_space(decades),
        "strengths": _strengths(prior, X, y),
    }


def _flow(prior: Normal, X: Tensor) -> dict[str, list[float]]:
    """Return expected squared error and variance at one input under gradient flow.

    The error is linear in the noise z of the true weights mu0 + S0 z, so its expected square is the
    sum of the squared errors for the unit vectors z.
    """
    x = torch.randn(1, P, dtype=torch.float64)
    errors, variances = [], []
    for time in TIMES:
        error = 0.0
        for column in prior.factor.T:
            truth = prior.mean + column
            now = regression.gradient_flow(X, X @ truth, prior, time)
            error += (x @ (now.mean - truth)).square().item()
        errors.append(error)
        variances.append(now.predict(x)[1].item())
    return {"errors": errors, "variances": variances}


def _subspaces(prior: Normal, X: Tensor, y: Tensor) -> dict[str, float]:
    """Return the squared distance of limit and prior, directly and as a sum over subspaces."""
    limit = regression.limit(X, y, prior)
    parts = squared_wasserstein_by_subspaces(limit, prior, row_basis(X))
    return {"whole": squared_wasserstein(limit, prior), "parts": sum(parts)}


def _strengths(prior: Normal, X: Tensor, y: Tensor) -> dict[str, float]:
    """Return distances between the minimiser with a 2-Wasserstein regularizer and the limit."""
    end = regression.limit(X, y, prior)
    found = {}
    for strength in (1e-2, 1e-4, 1e-6):
        q = regression.generalized(X, y, prior, strength)
        found[f"{strength:g}"] = float((q.mean - end.mean).norm() + (q.factor - end.factor).norm())
    return found


def _generalized(prior: Normal, decades: int) -> dict[str, Any]:
    """Return distances between projected iterates and projected limit at steps 10, 100, ..."""
    X, y = _separable(spanned=False)
    end = classification.project_to_support(classification.limit(X, y, prior), X, y)
    null = null_projection(X)
    gaps: dict[int, float] = {}
    factors: list[float] = []
    last = 10**decades
    for t, q in enumerate(islice(classification.gradient_descent(X, y, prior, 0.3), last), 1):
        if t >= 10 and math.log10(t).is_integer():
            ours = classification.rescaled(q, t, null, prior.mean)
            ours = classification.project_to_support(ours, X, y)
            gaps[t] = (ours.mean - end.mean).norm().item()
            factors.append(float((ours.factor - end.factor).norm() / prior.factor.norm()))
    return {
        "steps": list(gaps), "gaps": list(gaps.values()), "factor": factors[-1], "factors": factors,
    }  # fmt: skip


def _separable(spanned: bool) -> tuple[Tensor, Tensor]:
    """Return separable data; `spanned` says whether the support vectors span them."""
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        X = torch.randn(N, P, dtype=torch.float64, generator=generator)
        X = torch.nn.functional.normalize(X)
        y = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
        X = X + 0.5 * y[:, None] * torch.nn.functional.normalize(X.mean(0), dim=0)
        if classification.max_margin(X, y).spans is spanned:
            return X, y
    raise RuntimeError(f"no data with spanned={spanned} among 100 seeds")


def _null_space(decades: int) -> dict[str, Any]:
    """Return distances between the null space by QR of the factor and the true one, over time."""
    X, y = _separable(spanned=True)
    iterates = classification.gradient_descent(X, y, state(linear_model(P)), 0.3)
    distances: dict[int, float] = {}
    for t, q in enumerate(islice(iterates, 10**decades), 1):
        if t >= 10 and math.log10(t).is_integer():
            found = null_projection_from_factor(q.factor, tolerance=0.05)
            distances[t] = float((found - null_projection(X)).norm())
    return {
        "steps": list(distances),
        "distances": list(distances.values()),
        "dimension": round(found.trace().item()),
    }


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts on the claims."""
    apart = max(
        abs(a - b)
        for kind in ("draws", "limit")
        for a, b in zip(results["members"], results[kind], strict=True)
    )
    flow = max(
        abs(a - b) / b
        for a, b in zip(results["flow"]["errors"], results["flow"]["variances"], strict=True)
    )
    whole, parts = results["subspaces"]["whole"], results["subspaces"]["parts"]
    gaps = results["strengths"]
    return [
        Verdict(
            "ensemble-equivalence",
            apart < RELATIVE,
            "weights of trained members differ from the same draws of the trained model and of the "
            f"limit by at most {apart:.1e}",
            f"equal up to rounding, {RELATIVE:g}, when all have converged",
            number=f"{apart:.0e} apart",
            lacking="" if results["steps"] >= 500 else f"{results['steps']} steps",
        ),
        Verdict(
            "error-equals-variance-flow",
            flow < RELATIVE,
            f"at {len(TIMES)} times they differ by at most {flow:.1e} of the variance",
            f"equal up to rounding, {RELATIVE:g}: both sides are closed forms",
            number=f"{flow:.0e} apart",
        ),
        Verdict(
            "w2-subspace",
            abs(whole - parts) < ROOTS * whole,
            f"squared distance {whole:.6f}, sum over subspaces {parts:.6f}",
            f"equal up to rounding, {ROOTS:g} of the distance, which has roots of matrices",
            number=f"{abs(whole - parts) / whole:.0e} apart",
        ),
        _projected(results["generalized"]),
        _found_space(results["null_space"]),
        Verdict(
            "wide-gvi",
            all(gap > 0 for gap in gaps.values()) and _falls(list(gaps.values())),
            "distance between the minimiser with the regularizer and the limit without: "
            + ", ".join(f"{gap:.1e} (strength {s})" for s, gap in gaps.items()),
            "it falls with the strength, towards 0: the limit without a regularizer is that of "
            "vanishing strength",
            "linear models: limit of vanishing strength",
            f"{list(gaps.values())[-1]:.0e} apart",
        ),
    ]


def _projected(found: dict[str, Any]) -> Verdict:
    """Return the verdict on projected distributions, whose limit is approached like 1 / log t."""
    steps = found["steps"]
    scaled = [gap * math.log(t) for t, gap in zip(steps, found["gaps"], strict=True)]
    grown = [b - a for a, b in pairwise(scaled)]
    factors = found.get("factors")
    converges = _falls(factors) if factors else True
    return Verdict(
        "classification-generalized",
        _falls(found["gaps"]) and _falls([max(step, 0.0) for step in grown]) and converges,
        "distance of the mean to the projected limit times log t: "
        f"{', '.join(f'{value:.3f}' for value in scaled)} at t = "
        f"{', '.join(f'{t:.0e}' for t in steps)}; distance of the factor {found['factor']:.1%} of "
        "the prior's norm",
        "the distances fall in every decade, and the product with log t approaches a bound: it "
        "grows less in each decade than in the one before",
        number=f"{found['gaps'][-1]:.3f} apart",
        lacking="" if steps[-1] >= 10_000 else f"{steps[-1]} steps, a limit of 1 / log t",
    )


def _found_space(null: dict[str, Any]) -> Verdict:
    """Return the verdict on the null space by QR."""
    distances, steps = null["distances"], null["steps"]
    return Verdict(
        "null-space-by-qr",
        null["dimension"] == P - N and _falls(distances),
        f"QR of the factor finds {null['dimension']} directions; projections differ by "
        f"{', '.join(f'{value:.3f}' for value in distances)} in Frobenius norm at t = "
        f"{', '.join(f'{t:.0e}' for t in steps)}",
        f"the {P - N} directions of the null space, at a distance that falls in every decade",
        number=f"{distances[-1]:.3f} apart",
        lacking="" if steps[-1] >= 10_000 else f"{steps[-1]} steps, a limit of 1 / log t",
    )


def _falls(values: list[float]) -> bool:
    """Return whether each value is below the one before; zeros may repeat."""
    return all(b < a or a == b == 0 for a, b in pairwise(values))


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw the three panels from saved results."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.axline((0, 0), slope=1, color="gray", linewidth=0.8)
    left.plot(results["members"], results["draws"], ".")
    left.set(xlabel="weights of trained members", ylabel="weights of draws", title="Ensembles")
    flow = results["flow"]
    middle.plot(TIMES, flow["variances"], label="variance", linewidth=3, alpha=0.5)
    middle.plot(TIMES, flow["errors"], "--", color="black", label="expected squared error")
    middle.set(xscale="log", xlabel="time", title="Gradient flow")
    middle.legend(fontsize="small")
    found = results["generalized"]
    right.plot(found["steps"], found["gaps"], ".-")
    right.set(xscale="log", yscale="log", xlabel="step", title="Distance to the projected limit")
    for ending in ("pdf", "png"):
        saved(figure, folder / f"linear_claims.{ending}")


EXPERIMENT = Experiment(
    name="linear_claims",
    figure="supplement, propositions and lemmas",
    title="Further claims of the theory: ensembles, gradient flow, subspaces, projected limits.",
    about="""
    Linear models in double precision. Left: networks trained from draws of the prior, against the
    same draws of the trained distribution. Middle: expected squared error and variance under
    gradient flow. Right: where the support vectors don't span the data, the distance of the
    projected, rescaled iterates to the projected limit, which falls like 1 / log t.
    """,
    caption="Trained ensembles against trained distributions; expected squared error and variance "
    "under gradient flow; distance of the projected iterates to their limit",
    claims=(
        "ensemble-equivalence",
        "error-equals-variance-flow",
        "w2-subspace",
        "classification-generalized",
        "null-space-by-qr",
        "wide-gvi",
    ),
    scales={"smoke": {"steps": 10, "decades": 2}, "cpu": {}, "paper": {"decades": 6}},
    minutes={"smoke": 0.1, "cpu": 1, "paper": 10},
    needs="nothing",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
