"""The claim `corruptions`: how good predictions are on corrupted images.

    python -m tacit.experiments.corruptions --out DIR

The paper's fifth figure: error, NLL and ECE on the test images under 15 corruptions at the highest
severity, all methods, both parametrizations. The trainings are those of `in_distribution`. GVI is
compared in `gvi_comparison`, and counts neither as a rival here nor as IBVI.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from tacit.bench.summary import QUANTITIES
from tacit.experiments import compared
from tacit.experiments.compared import NAMES, NOT_THE_PAPERS, Comparison, label, written
from tacit.experiments.in_distribution import SEEDS, points
from tacit.experiments.runner import run
from tacit.experiments.verdict import Verdict
from tacit.plots import plot_comparison, plot_heat

SCALES = compared.SCALES
MINUTES = {"smoke": 0.5, "cpu": 100, "paper": 1e5}
NEEDS = "MNIST, Fashion-MNIST; paper: also CIFAR-10, CIFAR-100, TinyImageNet, torchvision, GPUs"
compute = partial(compared.compute, kinds=("corrupted",))
CLAIMS = ("corruptions",)


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return what the numbers say: of the paper's recipe, and of our defaults."""
    found = Comparison(results["rows"])
    decided = found.seeds >= SEEDS
    verdicts = []
    for method, name in NAMES.items():
        smaller = {
            f"{other} ({label(setting)})": found.mean(setting, method, "corrupted_error")
            < found.mean(setting, other, "corrupted_error")
            for setting in found.settings
            for other in found.methods(setting)
            if other not in ("deep_ensemble", *NOT_THE_PAPERS)
        }
        missed = [line for line, holds in smaller.items() if not holds]
        verdicts.append(
            Verdict(
                "corruptions",
                not missed if decided else None,
                f"a smaller error than {len(smaller) - len(missed)} of {len(smaller)}"
                + (f", not than {', '.join(missed)}" if missed else ""),
                "in every setting a smaller mean error over all corruptions than every method of "
                "the paper but the ensemble",
                f"{name}: the error",
            )
        )
        ratios = {
            n: found.ratios(method, "deep_ensemble", f"corrupted_{n}") for n in ("nll", "ece")
        }
        below = all(ratio < 1 for each in ratios.values() for ratio in each.values())
        verdicts.append(
            Verdict(
                "corruptions",
                below if decided else None,
                f"ratio to the ensemble of NLL {written(ratios['nll'])}; of ECE "
                + written(ratios["ece"]),
                "below 1 in every setting",
                f"{name}: NLL and ECE against the ensemble",
            )
        )
    return verdicts


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw means over corruptions, and each corruption, from saved results."""
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
