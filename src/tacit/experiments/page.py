"""What a folder of runs says about the paper: every claim, its verdict, its figure, its command."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType

from tacit.experiments.runner import read
from tacit.report import Page

EXPERIMENTS = (
    "implicit_vs_explicit",
    "single_sample",
    "lr_transfer",
    "in_distribution",
    "corruptions",
    "cost",
    "loss_landscape",
    "linear_theory",
    "linear_claims",
    "nll_overfitting",
    "coordinate_check",
    "rank_scaling",
    "gvi_comparison",
)
"""All experiments, in the order of the paper."""

STATEMENTS = {
    "regression-limit": "Gradient descent on the expected squared loss of a linear model ends at "
    "the minimiser that is closest to the prior in 2-Wasserstein distance.",
    "regression-interpolates": "All functions agree with the data, and off the data the prior is "
    "kept; with a KL regularizer they don't agree.",
    "ensemble-equivalence": "The trained distribution is that of an ensemble trained from draws of "
    "the prior.",
    "error-equals-variance-flow": "Under gradient flow the expected squared error equals the "
    "predictive variance at every time.",
    "error-equals-variance-sgd": "The same at every step of SGD; the covariance's trace never "
    "grows with a small enough learning rate.",
    "classification-max-margin": "On separable data the mean, divided by log t, goes to the "
    "max-margin vector.",
    "classification-collapse": "The variance vanishes on the support vectors' span; off the data "
    "the prior's factor stays.",
    "classification-generalized": "Without the assumption on the support vectors the same holds of "
    "projected distributions.",
    "w2-subspace": "The 2-Wasserstein distance is a sum over range and null space of the data.",
    "null-space-by-qr": "The trained factor spans the null space of the data, which its QR "
    "decomposition therefore gives.",
    "rank-scaling": "With S z scaled by the root of the rank, training doesn't depend on the rank.",
    "coordinate-check": "Under muP features move by an amount that doesn't depend on the width; "
    "under the standard parametrization they do.",
    "lr-transfer": "Under muP the best learning rate is the same at every width; under the "
    "standard parametrization it falls.",
    "single-sample": "One draw of the weights per step is enough; fewer samples need a smaller "
    "learning rate, and more steps or momentum close the gap.",
    "nll-overfitting": "The mean's norm grows like log t, so the validation NLL rises while the "
    "error does not; a temperature stops it.",
    "in-distribution": "The test error is like a standard network's, NLL and ECE are much better, "
    "close to temperature scaling and ensembles.",
    "averaging": "It makes no difference whether log-probabilities, probabilities or logits are "
    "averaged.",
    "corruptions": "Under corruptions the error is smaller than of all but ensembles, NLL and ECE "
    "are better than theirs.",
    "cost": "A step takes about the time of a plain network's and a tenth more memory; an ensemble "
    "takes K times as long.",
    "wide-gvi": "An explicit 2-Wasserstein regularizer is similar or worse at every strength.",
}
"""The claims in our words."""


def experiment(name: str) -> ModuleType:
    """Return the module of an experiment."""
    if name not in EXPERIMENTS:
        raise ValueError(f"expected one of {', '.join(EXPERIMENTS)}; received {name!r}.")
    return import_module(f"tacit.experiments.{name}")


def title_of(module: ModuleType) -> str:
    """Return what an experiment shows, in a line."""
    return (module.__doc__ or "").splitlines()[0]


def write(out: Path) -> Path:
    """Write index.html and index.md into a folder, from the results in its folders.

    Raises:
        ValueError: If there are none.
    """
    found = [name for name in EXPERIMENTS if (out / name / "results.json").exists()]
    if not found:
        raise ValueError(f"{out}: there are no results of tacit reproduce.")
    page = Page("The paper, reproduced")
    page.text(
        "Each verdict is computed from the numbers of a run; what they are held against was "
        "written in code before it, unless a section says otherwise. The scale cpu is smaller than "
        "the paper's: each section says what was run."
    )
    rows = []
    for name in found:
        saved = read(out / name)
        rows += [
            [verdict.claim, verdict.subject or "all of it", verdict.state, name, saved["scale"]]
            for verdict in experiment(name).verdicts(saved["results"])
        ]
    states = Counter(row[2] for row in rows)
    page.text(", ".join(f"{count} {state}" for state, count in states.items()) + ".")
    page.table(["claim", "of what", "verdict", "experiment", "scale"], rows)
    for name in found:
        _section(page, name, out / name)
    page.write(out / "index.md")
    return page.write(out / "index.html")


def _section(page: Page, name: str, folder: Path) -> None:
    saved, module = read(folder), experiment(name)
    page.heading(title_of(module))
    _, _, about = (module.__doc__ or "").partition(f"{name} --out DIR")
    for paragraph in about.strip().split("\n\n"):
        page.text(" ".join(paragraph.split()))
    for claim in module.CLAIMS:
        page.text(f"The paper's claim {claim}: {STATEMENTS[claim]}")
    for verdict in module.verdicts(saved["results"]):
        subject = f" ({verdict.subject})" if verdict.subject else ""
        page.text(f"{verdict.claim}{subject}: {verdict.state}.")
        page.text(f"Measured: {verdict.measured}.")
        page.text(f"Asked: {verdict.asked}.", soft=True)
    for picture in sorted(folder.glob("*.png")):
        caption = f"{name}: {picture.stem.replace('_', ' ')}"
        page.picture(picture.read_bytes(), caption, f"{name}/{picture.name}")
    page.code(f"tacit reproduce {name} --scale {saved['scale']}")
    versions = ", ".join(f"{tool} {number}" for tool, number in saved["versions"].items())
    page.text(
        f"Code: src/tacit/experiments/{name}.py. Numbers: {name}/results.json. With {versions}; "
        f"commit {saved['commit']}.",
        soft=True,
    )
