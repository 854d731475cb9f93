"""The page on the paper: every claim with its verdict, figures, and the command to reproduce it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.studies.experiments.claims import CLAIMS
from tacit.studies.experiments.evidence import all_of
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.gpu_hours import (
    IMAGES,
    OPERATIONS,
    RATE,
    gpu_hours,
    passes_per_image,
)
from tacit.studies.experiments.registry import EXPERIMENTS
from tacit.studies.experiments.reproduction import is_saved, judge, read_saved
from tacit.studies.experiments.verdict import FAILS, HOLDS, UNDECIDED, Verdict
from tacit.studies.report import Page

PAPER = "paper"  # subfolder whose results replace those of smaller scales


@dataclass(frozen=True)
class Found:
    """A saved experiment with its verdicts.

    Args:
        experiment: The experiment.
        folder: Folder of its results.
        saved: Its numbers, arguments and provenance.
        verdicts: Its verdicts.
    """

    experiment: Experiment
    folder: Path
    saved: Mapping[str, Any]
    verdicts: Sequence[Verdict]


def write_page(out: Path) -> Path:
    """Write index.html and index.md into a folder, from the results in its subfolders.

    Results in the subfolder `paper` replace those of the same experiment beside it. Of that
    subfolder itself, the page is that of the folder around it.

    Returns:
        The path of index.html.

    Raises:
        ValueError: If there are no results, or a file was not written by `reproduce`.
    """
    if out.name == PAPER:
        out = out.parent
    found = [
        Found(experiment, folder, read_saved(folder), judge(experiment, folder))
        for name, experiment in EXPERIMENTS.items()
        if (folder := saved_folder(out, name)) is not None
    ]
    if not found:
        raise ValueError(f"{out}: there are no results of tacit reproduce.")
    page = Page("The paper, reproduced")
    _claims(page, found)
    _questions(page, found)
    _how(page)
    for each in found:
        _section(page, each, out)
    page.write(out / "index.md")
    return page.write(out / "index.html")


def saved_folder(out: Path, name: str) -> Path | None:
    """Return the folder of an experiment's results, at the paper's scale if there are some."""
    return next((f for f in (out / PAPER / name, out / name) if is_saved(f)), None)


def _claims(page: Page, found: Sequence[Found]) -> None:
    """Add the table with one row for each claim of the paper."""
    rows = {claim: _claim(claim, found) for claim in CLAIMS}
    page.text(_conclusions(rows, found))
    page.text(
        "A claim holds if all its parts hold. Each verdict compares the numbers of a run with a "
        "reference that is computed beside them, with the uncertainty over seeds, by code that "
        'states its criterion below. The scale "cpu" is smaller than the paper\'s, so it decides '
        "few claims on training; the sections give the settings.",
        soft=True,
    )
    page.table(
        ["verdict", "claim", "number", "in the paper", "scale, and what it lacks"],
        list(rows.values()),
        wrap=True,
    )


def _conclusions(rows: Mapping[str, Sequence[str]], found: Sequence[Found]) -> str:
    """Return three sentences: which claims hold, which fail or are open, and our own questions."""
    states = {claim: row[0].partition(" (")[0] for claim, row in rows.items()}
    held, failed = ([c for c, state in states.items() if state == s] for s in (HOLDS, FAILS))
    undecided = len(states) - len(held) - len(failed)
    own = Counter(verdict.state for each in found for verdict in each.verdicts if verdict.ours)
    answers = ", ".join(f"{state}: {count}" for state, count in own.most_common())
    return (
        f"{len(held)} of the {len(states)} claims of the paper hold in these runs{_names(held)}. "
        f"{len(failed)} do not hold{_names(failed)}, and {undecided} are not decided. "
        "Our own questions, beyond the paper's sentences, have these answers: "
        f"{answers or 'none yet'}."
    )


def _names(claims: Sequence[str]) -> str:
    return f" ({', '.join(claims)})" if claims else ""


def _claim(claim: str, found: Sequence[Found]) -> list[str]:
    statement = f"{claim}: {CLAIMS[claim]}"
    parts = [
        (verdict, each)
        for each in found
        for verdict in each.verdicts
        if verdict.claim == claim and not verdict.ours
    ]
    if not parts:
        lacking = "no results" if claim not in _tested(found) else "no run on the paper's data"
        return [UNDECIDED, statement, "", "", lacking]
    state = all_of(verdict.holds for verdict, _ in parts)
    same = [(verdict, each) for verdict, each in parts if verdict.holds is state]
    verdict = same[0][0]
    number = verdict.number
    if number and verdict.subject:
        number = f"{number} ({verdict.subject})"
    figures = dict.fromkeys(each.experiment.figure for _, each in parts)
    scales = ", ".join(dict.fromkeys(_scale(each) for _, each in parts))
    count = f" ({len(same)} of {len(parts)} parts)" if len(parts) > 1 else ""
    why = _undecided([each for each, _ in same]) if state is None else ""
    return [verdict.state + count, statement, number, "; ".join(figures), scales + why]


def _tested(found: Sequence[Found]) -> set[str]:
    return {claim for each in found for claim in each.experiment.claims}


def _undecided(verdicts: Sequence[Verdict]) -> str:
    """Return why parts are undecided, and what the smaller run says of them."""
    reasons = "; ".join(dict.fromkeys(verdict.lacking for verdict in verdicts))
    trends = [verdict.trend for verdict in verdicts]
    words = [
        f"{word} in {trends.count(trend)}"
        for trend, word in ((True, "holds"), (False, "does not hold"))
        if trend in trends
    ]
    return f": {reasons}" + (f"; numbers of this run: {', '.join(words)}" if words else "")


def _scale(each: Found) -> str:
    """Return the scale of a run, with its data."""
    data = each.saved["arguments"].get("data", ())
    names = [data] if isinstance(data, str) else list(data)
    return f"{each.saved['scale']} ({', '.join(names)})" if names else str(each.saved["scale"])


def _how(page: Page) -> None:
    """Add how to run the experiments at the paper's scale."""
    page.text("To run what fits on two cores at the paper's own settings, in the background:")
    page.code(
        "nohup nice tacit reproduce implicit_vs_explicit single_sample lr_transfer in_distribution "
        "\\\n    corruptions gvi_comparison nll_overfitting coordinate_check --scale paper \\\n"
        "    --out results/paper --jobs 2 &"
    )
    page.text(
        "Each training run is saved when it ends, so the same command continues a run that was "
        "stopped or killed. With --cells, a pattern of names of files, experiments train a part, "
        "and are judged from what is finished; with --cells '' they train nothing. The training "
        "runs of in_distribution and corruptions are those of tacit bench; with --bench FOLDER "
        "they are taken from its results.",
        soft=True,
    )
    page.text(
        "CIFAR-10, CIFAR-100 and TinyImageNet with ResNet-34 need a GPU, which is used if there is "
        "one, and torchvision for the pretrained weights:"
    )
    page.code(
        "tacit reproduce in_distribution corruptions --scale paper --out results/paper \\\n"
        "    --data cifar10,cifar100,tiny_imagenet --jobs 1"
    )
    hours = {data: gpu_hours(data) for data in IMAGES}
    page.text(
        "They have not been run, and nothing is claimed about them. An estimate: a forward and "
        f"backward pass takes {OPERATIONS['cifar10'] / 1e9:.1f} GFLOP an image of CIFAR and "
        f"{OPERATIONS['tiny_imagenet'] / 1e9:.1f} GFLOP one of TinyImageNet, counted by torch. All "
        f"methods, seeds and both parametrizations are {passes_per_image()} passes per image and "
        f"epoch. At {RATE / 1e12:g} TFLOP/s this is {hours['cifar10']:,.0f} hours on each CIFAR "
        f"and {hours['tiny_imagenet']:,.0f} on TinyImageNet, and up to a fifth more for "
        "predictions with 32 samples on all corrupted images.",
        soft=True,
    )


def _questions(page: Page, found: Sequence[Found]) -> None:
    """Add the table of questions of ours."""
    rows = [
        [
            verdict.state,
            f"{verdict.claim}: {verdict.subject}",
            verdict.number,
            _scale(each) + (_undecided([verdict]) if verdict.holds is None else ""),
        ]
        for each in found
        for verdict in each.verdicts
        if verdict.ours
    ]
    if rows:
        page.heading("Our own questions")
        page.text(
            "These go beyond the paper's sentences: other data, tacit's defaults, what the theory "
            "of linear models would say of deep networks."
        )
        page.table(["answer", "question", "number", "scale, and what it lacks"], rows, wrap=True)


def _section(page: Page, each: Found, out: Path) -> None:
    experiment, folder, saved = each.experiment, each.folder, each.saved
    name, place = experiment.name, folder.relative_to(out)
    page.heading(experiment.title)
    if experiment.figure:
        page.text(f"In the paper: {experiment.figure}.", soft=True)
    for paragraph in experiment.paragraphs:
        page.text(paragraph)
    if trained := saved["results"].get("trained"):
        page.text(f"Finished so far: {trained}.")
    for claim in experiment.claims:
        page.text(f"The paper's claim {claim}: {CLAIMS[claim]}")
    for picture in sorted(folder.glob("*.png")):
        detail = picture.stem.replace("_", " ")
        caption = experiment.caption + (f": {detail}." if picture.stem != name else ".")
        page.picture(picture.read_bytes(), caption, f"{place.as_posix()}/{picture.name}")
    for verdict in each.verdicts:
        subject = f" ({verdict.subject})" if verdict.subject else ""
        page.text(f"{verdict.claim}{subject}: {verdict.reason}.")
        page.text(f"Measured: {verdict.measured}.")
        page.text(f"Criterion: {verdict.criterion}.", soft=True)
    where = " --out results/paper" if place.parts[0] == PAPER else ""
    if bench := saved["arguments"].get("bench"):
        where += f" --bench {bench}"
    page.code(f"tacit reproduce {name} --scale {saved['scale']}{where}")
    versions = ", ".join(f"{tool} {number}" for tool, number in saved["versions"].items())
    hours = saved.get("hours")
    page.text(
        f"Code: src/tacit/studies/experiments/{name}.py. Numbers: {place.as_posix()}/results.json. "
        + ("" if hours is None else f"Time of all training runs: {hours:.1f} h. ")
        + f"Run with {versions}; commit {saved.get('commit')}.",
        soft=True,
    )
