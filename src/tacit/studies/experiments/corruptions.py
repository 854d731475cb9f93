"""Error, NLL and ECE of all methods on corrupted images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tacit.studies.bench.summary import QUANTITIES
from tacit.studies.experiments import comparison
from tacit.studies.experiments.comparison import (
    BASELINES,
    ENSEMBLE,
    NAMES,
    OURS,
    Comparison,
    label,
    parts,
    short,
)
from tacit.studies.experiments.evidence import all_of, listed, lower
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.in_distribution import judge_methods, points
from tacit.studies.experiments.verdict import Verdict
from tacit.studies.plots import plot_comparison, plot_heat


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts on the paper's recipe; our defaults and other data are our questions."""
    judged = []
    for found, paper in parts(results):
        for method, name in NAMES.items():
            if method not in {row["method"] for row in found.rows}:
                continue
            ours = method == OURS or not paper
            judge = partial(judge_methods, found, arguments, ours, claim="corruptions")
            name = name if paper else f"other data: {name}"
            judged += [_error(found, method, name, judge), *_against(found, method, name, judge)]
    return judged


def _error(found: Comparison, method: str, name: str, judge: Callable[..., Verdict]) -> Verdict:
    """Return the verdict on the error against every method but the ensemble."""
    others = {
        f"{short(other)} {at}": each
        for other in BASELINES
        for at, each in found.differences(method, other, "corrupted_error").items()
    }
    smaller = sum(lower(each) is True for each in others.values())
    return judge(
        (method, *BASELINES),
        all_of(lower(each) for each in others.values()),
        f"error minus that of others, mean over corruptions, in points: {listed(others)}",
        "below that of every method but the ensemble in every setting, over seeds",
        f"{name}: smaller error than all but ensembles",
        f"smaller than {smaller} of {len(others)}",
    )


def _against(
    found: Comparison, method: str, name: str, judge: Callable[..., Verdict]
) -> Iterator[Verdict]:
    """Yield the verdicts on NLL and ECE against the ensemble."""
    for quantity in ("nll", "ece"):
        differences = found.differences(method, ENSEMBLE, f"corrupted_{quantity}")
        ratio = found.ratio(method, ENSEMBLE, f"corrupted_{quantity}")
        yield judge(
            (method, ENSEMBLE),
            all_of(lower(each) for each in differences.values()),
            f"{quantity.upper()} minus that of the ensemble, mean over corruptions: "
            f"{listed(differences)}; {ratio:.2f} times",
            "below that of the ensemble in every setting, over seeds",
            f"{name}: better {quantity.upper()} than ensembles",
            f"{ratio:.2f} times",
        )


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw means over corruptions, and a table by corruption, from saved results."""
    found = Comparison(results["rows"])
    for setting in found.settings:
        title = label(setting)
        name = title.replace(" ", "_")
        quantities = ("error", "nll", "ece")
        panels = points(found, setting, [f"corrupted_{quantity}" for quantity in quantities])
        for ending in ("pdf", "png"):
            plot_comparison(panels, folder / f"{name}.{ending}", f"{title}: corrupted images")
            for quantity in quantities:
                table = {
                    method: _by_corruption(found, setting, method, quantity)
                    for method in found.methods(setting)
                }
                plot_heat(
                    table,
                    folder / f"{name}_{quantity}.{ending}",
                    f"{title}: {QUANTITIES[quantity].title} by corruption",
                )


def _by_corruption(
    found: Comparison, setting: comparison.Setting, method: str, quantity: str
) -> dict[str, float]:
    names = next(row["numbers"] for row in found.rows if row["method"] == method)
    kinds = [n.split("/")[1] for n in names if n.startswith("corrupted/") and n.endswith(quantity)]
    return {kind: found.mean(setting, method, f"corrupted/{kind}/{quantity}") for kind in kinds}


EXPERIMENT = Experiment(
    name="corruptions",
    title="The claim `corruptions`: predictions on corrupted images.",
    about="""
    The paper's fifth figure: error, NLL and ECE on the test images under 15 corruptions at the
    highest severity (MNIST-C: the published ones), for all methods in both parametrizations. The
    training runs are those of `in_distribution`. GVI is compared in `gvi_comparison`.
    """,
    figure="Fig. 5 and a figure of the supplement",
    caption="Each method on corrupted images, means over seeds",
    claims=("corruptions",),
    scales=comparison.SCALES,
    minutes=comparison.MINUTES,
    needs=comparison.NEEDS,
    compute=partial(comparison.compute, kinds=("corrupted",)),
    verdicts=verdicts,
    draw=draw,
)
