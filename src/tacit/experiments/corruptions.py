"""The claim `corruptions`: how good predictions are on corrupted images.

    python -m tacit.experiments.corruptions --out DIR

The paper's fifth figure: error, NLL and ECE on the test images under 15 corruptions at the highest
severity, all methods, both parametrizations. The trainings are those of `in_distribution`.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from tacit.bench.summary import QUANTITIES
from tacit.experiments import compared
from tacit.experiments.compared import NAMES, NOT_THE_PAPERS, Comparison, written
from tacit.experiments.in_distribution import SEEDS, points
from tacit.experiments.runner import run
from tacit.experiments.verdict import Verdict
from tacit.plots import plot_comparison, plot_heat

SCALES = compared.SCALES
MINUTES = {"smoke": 0.5, "cpu": 100, "paper": 1e5}
compute = partial(compared.compute, kinds=("corrupted",))
CLAIMS = ("corruptions",)


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return what the numbers say: of the paper's recipe, and of our defaults."""
    found = Comparison(results["rows"])
    decided = found.seeds >= SEEDS
    verdicts = []
    for method, name in NAMES.items():
        better: list[str] = []
        worse: list[str] = []
        for setting in found.settings:
            own = found.mean(setting, method, "corrupted_error")
            for other in found.methods(setting):
                if other in (method, "deep_ensemble", *NAMES, *NOT_THE_PAPERS):
                    continue
                smaller = own < found.mean(setting, other, "corrupted_error")
                (better if smaller else worse).append(f"{other} ({setting[0]} {setting[1]})")
        ratios = {
            n: found.ratios(method, "deep_ensemble", f"corrupted_{n}") for n in ("nll", "ece")
        }
        below = all(ratio < 1 for each in ratios.values() for ratio in each.values())
        verdicts.append(
            Verdict(
                "corruptions",
                (not worse and below) if decided else None,
                f"{name}: a smaller error than {len(better)} of {len(better) + len(worse)} others"
                + (f", not than {', '.join(worse)}" if worse else "")
                + f"; ratio to the ensemble of NLL {written(ratios['nll'])}, of ECE "
                + written(ratios["ece"]),
                "in every setting a smaller mean error over all corruptions than every method of "
                "the paper but the ensemble, and a smaller NLL and ECE than the ensemble",
            )
        )
    return verdicts


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw means over corruptions, and each corruption, from saved results."""
    found = Comparison(results["rows"])
    for setting in found.settings:
        name = f"{setting[0].partition(':')[2] or setting[0]}_{setting[1]}"
        title = name.replace("_", " ")
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
                    f"{title}: {QUANTITIES[quantity].title} of each corruption",
                )


def _by_corruption(
    found: Comparison, setting: compared.Setting, method: str, quantity: str
) -> dict[str, float]:
    names = next(row["numbers"] for row in found.rows if row["method"] == method)
    kinds = [n.split("/")[1] for n in names if n.startswith("corrupted/") and n.endswith(quantity)]
    return {kind: found.mean(setting, method, f"corrupted/{kind}/{quantity}") for kind in kinds}


if __name__ == "__main__":
    run(sys.modules[__name__])
