"""Error, NLL and ECE of all methods on corrupted images."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tacit.studies.bench.summary import QUANTITIES
from tacit.studies.experiments import comparison
from tacit.studies.experiments.comparison import (
    NAMES,
    NOT_IN_PAPER,
    Comparison,
    format_ratios,
    label,
)
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.in_distribution import SEEDS, points
from tacit.studies.experiments.verdict import Verdict
from tacit.studies.plots import plot_comparison, plot_heat


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return the verdicts on the paper's recipe and on our defaults."""
    found = Comparison(results["rows"])
    decided = found.seeds >= SEEDS
    judged = []
    for method, name in NAMES.items():
        smaller = {
            f"{other} ({label(setting)})": found.mean(setting, method, "corrupted_error")
            < found.mean(setting, other, "corrupted_error")
            for setting in found.settings
            for other in found.methods(setting)
            if other not in ("deep_ensemble", *NOT_IN_PAPER)
        }
        missed = [line for line, holds in smaller.items() if not holds]
        judged.append(
            Verdict(
                "corruptions",
                not missed if decided else None,
                f"smaller error in {len(smaller) - len(missed)} of {len(smaller)} comparisons"
                + (f"; not smaller than {', '.join(missed)}" if missed else ""),
                "in every setting a smaller mean error over corruptions than all of the paper's "
                "methods but the ensemble",
                f"{name}: error",
            )
        )
        ratios = {
            n: found.ratios(method, "deep_ensemble", f"corrupted_{n}") for n in ("nll", "ece")
        }
        below = all(ratio < 1 for each in ratios.values() for ratio in each.values())
        judged.append(
            Verdict(
                "corruptions",
                below if decided else None,
                f"ratios to the ensemble: NLL {format_ratios(ratios['nll'])}; ECE "
                + format_ratios(ratios["ece"]),
                "below 1 in every setting",
                f"{name}: NLL and ECE against the ensemble",
            )
        )
    return judged


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
    training runs are those of `in_distribution`. GVI is compared in `gvi_comparison`; here it
    counts neither as a competitor nor as IBVI.
    """,
    claims=("corruptions",),
    scales=comparison.SCALES,
    minutes=comparison.MINUTES,
    needs=comparison.NEEDS,
    compute=partial(comparison.compute, kinds=("corrupted",)),
    verdicts=verdicts,
    draw=draw,
)
