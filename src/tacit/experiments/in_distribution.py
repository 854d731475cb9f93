"""The claims `in-distribution` and `averaging`: how good predictions are on test images.

    python -m tacit.experiments.in_distribution --out DIR

The paper's fourth figure: error, NLL and ECE of all methods in both parametrizations. The scale
"cpu" has LeNet-5 on 10,000 images of MNIST and Fashion-MNIST, 20 epochs, 3 seeds; "paper" has its
data sets, ResNet-34 (not pretrained), 200 epochs and 5 seeds. The trainings are in the folder
`bench` beside that of the results, where `corruptions` finds them too; a stopped run goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tacit.bench.summary import QUANTITIES, p_value, standard_error
from tacit.experiments import compared
from tacit.experiments.compared import NAMES, Comparison, written
from tacit.experiments.runner import run
from tacit.experiments.verdict import Verdict
from tacit.plots import plot_comparison

SCALES = compared.SCALES
MINUTES = {"smoke": 0.5, "cpu": 100, "paper": 1e5}
compute = partial(compared.compute, kinds=("error", "nll", "ece", "averaging"))
CLAIMS = ("in-distribution", "averaging")
SEEDS = 3  # from fewer nothing is decided
LIKE, BETTER, CLOSE = 1.1, 0.9, 1.2


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return what the numbers say: of the paper's recipe, of our defaults, of the others."""
    found = Comparison(results["rows"])
    decided = found.seeds >= SEEDS
    verdicts = []
    for method, name in NAMES.items():
        error = found.ratios(method, "standard", "error")
        better = {n: found.ratios(method, "standard", n) for n in ("nll", "ece")}
        close = {
            other: found.ratios(method, other, "nll")
            for other in ("temperature_scaling", "deep_ensemble")
        }
        good = (
            max(error.values()) <= LIKE
            and all(max(ratios.values()) <= BETTER for ratios in better.values())
            and all(max(ratios.values()) <= CLOSE for ratios in close.values())
        )
        verdicts.append(
            Verdict(
                "in-distribution",
                good if decided else None,
                f"{name}, ratios to the standard network: error {written(error)}; NLL "
                f"{written(better['nll'])}; ECE {written(better['ece'])}. Ratios of NLL: to "
                f"temperature scaling {written(close['temperature_scaling'])}; to the ensemble "
                f"{written(close['deep_ensemble'])}",
                f"in every setting error at most {LIKE:g} times the standard network's, NLL and "
                f"ECE at most {BETTER:g} times, NLL at most {CLOSE:g} times that of temperature "
                "scaling and of the ensemble",
            )
        )
    verdicts.append(_post_hoc(found, decided))
    verdicts.append(_averaging(found, decided))
    return verdicts


def _post_hoc(found: Comparison, decided: bool) -> Verdict:
    """Return whether methods that come after training leave the error as it is."""
    ratios = {
        method: found.ratios(method, "standard", "error")
        for method in ("temperature_scaling", "laplace_grid", "laplace_marglik")
        if any(method in found.methods(setting) for setting in found.settings)
    }
    furthest = max(abs(ratio - 1) for each in ratios.values() for ratio in each.values())
    return Verdict(
        "in-distribution",
        furthest <= 0.02 if decided else None,
        "ratios of the error after training to that before: "
        + "; ".join(f"{method} {written(each)}" for method, each in ratios.items()),
        "within 2 %: probit Laplace moves the error by an image or two",
    )


def _averaging(found: Comparison, decided: bool) -> Verdict:
    """Return whether it matters what is averaged over functions."""
    sampled = ("deep_ensemble", *NAMES)
    lines, good = [], True
    for method in sampled:
        for setting in found.settings:
            ways = [
                found.values(setting, method, f"averaging/{way}/nll")
                for way in ("log_probs", "probs")
            ]
            differences = [ways[0][seed] - ways[1][seed] for seed in ways[0]]
            share = sum(differences) / sum(ways[1].values())
            chance = p_value(differences)
            good &= abs(share) <= 0.02 or (chance is not None and chance > 0.05)
            lines.append(f"{method} {setting[0]} {setting[1]} {share:+.1%}")
    return Verdict(
        "averaging",
        good if decided else None,
        "NLL with log-probabilities averaged (the same as with logits), against probabilities: "
        + ", ".join(lines),
        "within 2 %, or not significant at 5 % over the seeds",
    )


def points(
    found: Comparison, setting: compared.Setting, quantities: Sequence[str]
) -> Mapping[str, Mapping[str, tuple[float, float]]]:
    """Return panels for `plot_comparison`: title -> method -> mean and standard error."""
    panels: dict[str, dict[str, tuple[float, float]]] = {}
    for quantity in quantities:
        for method in found.methods(setting):
            values = list(found.values(setting, method, quantity).values())
            point = (found.mean(setting, method, quantity), standard_error(values))
            panels.setdefault(QUANTITIES[quantity].title, {})[method] = point
    return panels


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw error, NLL and ECE from saved results, a figure for each parametrization."""
    found = Comparison(results["rows"])
    for data, parametrization in found.settings:
        name = f"{data.partition(':')[2] or data}_{parametrization}"
        for ending in ("pdf", "png"):
            plot_comparison(
                points(found, (data, parametrization), ("error", "nll", "ece")),
                folder / f"{name}.{ending}",
                f"{name.replace('_', ' ')}: test images, means and standard errors",
            )


if __name__ == "__main__":
    run(sys.modules[__name__])
