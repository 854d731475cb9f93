"""What a folder of runs says about the paper: every claim, its verdict, its figure, its command."""

from __future__ import annotations

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
    "nll_overfitting",
    "coordinate_check",
    "gvi_comparison",
)
"""All experiments, in the order of the paper."""


def experiment(name: str) -> ModuleType:
    """Return the module of an experiment."""
    if name not in EXPERIMENTS:
        raise ValueError(f"expected one of {', '.join(EXPERIMENTS)}; received {name!r}.")
    return import_module(f"tacit.experiments.{name}")


def title_of(module: ModuleType) -> str:
    """Return what an experiment shows, in a line."""
    return (module.__doc__ or "").splitlines()[0]


def write(out: Path) -> Path:
    """Write index.html into a folder, from the results in its folders."""
    page = Page("The paper, reproduced")
    page.text(
        "Each verdict is computed from the numbers of a run; what they are held against was "
        "written in code before it."
    )
    found = [name for name in EXPERIMENTS if (out / name / "results.json").exists()]
    rows = []
    for name in found:
        saved = read(out / name)
        rows += [
            [verdict.claim, verdict.state, name, saved.get("scale", "cpu")]
            for verdict in experiment(name).verdicts(saved["results"])
        ]
    page.table(["claim", "verdict", "experiment", "scale"], rows)
    for name in found:
        _section(page, name, out / name)
    return page.write(out / "index.html")


def _section(page: Page, name: str, folder: Path) -> None:
    saved, module = read(folder), experiment(name)
    page.heading(title_of(module))
    for verdict in module.verdicts(saved["results"]):
        page.text(f"{verdict.claim}: {verdict.state}.")
        page.text(f"Measured: {verdict.measured}.")
        page.text(f"Asked: {verdict.asked}.", soft=True)
    for picture in sorted(folder.glob("*.png")):
        page.picture(picture.read_bytes(), f"{name}: {picture.stem.replace('_', ' ')}")
    page.code(f"tacit reproduce {name} --scale {saved.get('scale', 'cpu')}")
    versions = ", ".join(f"{tool} {number}" for tool, number in saved["versions"].items())
    page.text(f"With {versions}; commit {saved['commit']}.", soft=True)
