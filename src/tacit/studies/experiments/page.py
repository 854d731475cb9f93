"""The page on the paper: every claim with its verdict, figures, and the command to reproduce it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tacit.studies.experiments.claims import CLAIMS
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.registry import EXPERIMENTS
from tacit.studies.experiments.reproduction import is_saved, judge, read_saved
from tacit.studies.report import Page


def write_page(out: Path) -> Path:
    """Write index.html and index.md into a folder, from the results in its subfolders.

    Returns:
        The path of index.html.

    Raises:
        ValueError: If there are no results, or a file was not written by `reproduce`.
    """
    found = [experiment for name, experiment in EXPERIMENTS.items() if is_saved(out / name)]
    if not found:
        raise ValueError(f"{out}: there are no results of tacit reproduce.")
    page = Page("The paper, reproduced")
    page.text(
        "Each verdict is computed from the numbers of a run. Its criterion was written in code "
        'before the run, unless a section says otherwise. The scale "cpu" is smaller than the '
        "paper's: each section states its settings."
    )
    rows = [row for experiment in found for row in _rows(experiment, out / experiment.name)]
    states = Counter(row[2] for row in rows)
    page.text(", ".join(f"{count} {state}" for state, count in states.items()) + ".")
    page.table(["claim", "part", "verdict", "experiment", "scale"], rows)
    for experiment in found:
        _section(page, experiment, out / experiment.name)
    page.write(out / "index.md")
    return page.write(out / "index.html")


def _rows(experiment: Experiment, folder: Path) -> list[list[str]]:
    """Return the rows of the table of verdicts that belong to an experiment."""
    saved = read_saved(folder)
    return [
        [
            verdict.claim,
            verdict.subject or "whole claim",
            verdict.state,
            experiment.name,
            saved["scale"],
        ]
        for verdict in judge(experiment, folder)
    ]


def _section(page: Page, experiment: Experiment, folder: Path) -> None:
    saved, name = read_saved(folder), experiment.name
    page.heading(experiment.title)
    for paragraph in experiment.paragraphs:
        page.text(paragraph)
    for claim in experiment.claims:
        page.text(f"The paper's claim {claim}: {CLAIMS[claim]}")
    for verdict in judge(experiment, folder):
        subject = f" ({verdict.subject})" if verdict.subject else ""
        page.text(f"{verdict.claim}{subject}: {verdict.state}.")
        page.text(f"Measured: {verdict.measured}.")
        page.text(f"Criterion: {verdict.criterion}.", soft=True)
    for picture in sorted(folder.glob("*.png")):
        caption = f"{name}: {picture.stem.replace('_', ' ')}"
        page.picture(picture.read_bytes(), caption, f"{name}/{picture.name}")
    page.code(f"tacit reproduce {name} --scale {saved['scale']}")
    versions = ", ".join(f"{tool} {number}" for tool, number in saved["versions"].items())
    page.text(
        f"Code: src/tacit/studies/experiments/{name}.py. Numbers: {name}/results.json. Run with "
        f"{versions}; commit {saved.get('commit')}.",
        soft=True,
    )
