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

from tacit.bench.summary import QUANTITIES, standard_error
from tacit.experiments import compared
from tacit.experiments.compared import NAMES, Comparison, label, written
from tacit.experiments.runner import run
from tacit.experiments.verdict import Verdict
from tacit.plots import plot_comparison

SCALES = compared.SCALES
MINUTES = {"smoke": 0.5, "cpu": 100, "paper": 1e5}
NEEDS = "MNIST, Fashion-MNIST; paper: also CIFAR-10, CIFAR-100, TinyImageNet, torchvision, GPUs"
compute = partial(compared.compute, kinds=("error", "nll", "ece", "averaging"))
CLAIMS = ("in-distribution", "averaging")
SEEDS = 3  # from fewer nothing is decided
LIKE, BETTER, CLOSE, ALIKE = 1.1, 0.8, 1.2, 0.05


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return what the numbers say: of the paper's recipe, of our defaults, of the others."""
    found = Comparison(results["rows"])
    decided = found.seeds >= SEEDS
    return [
        verdict
        for method, name in NAMES.items()
        for verdict in _of_method(found, method, name, decided)
    ] + [_post_hoc(found, decided), _worse(found, decided), _averaging(found, decided)]


def _of_method(found: Comparison, method: str, name: str, decided: bool) -> list[Verdict]:
    """Return how a method compares with the standard network, and with the best of the others."""
    error = found.ratios(method, "standard", "error")
    better = {n: found.ratios(method, "standard", n) for n in ("nll", "ece")}
    close = {
        other: found.ratios(method, other, "nll")
        for other in ("temperature_scaling", "deep_ensemble")
    }
    like = all(ratio <= LIKE for ratio in error.values())
    much = all(ratio <= BETTER for ratios in better.values() for ratio in ratios.values())
    near = all(ratio <= CLOSE for ratios in close.values() for ratio in ratios.values())
    return [
        Verdict(
            "in-distribution",
            like and much if decided else None,
            f"ratios to the standard network: error {written(error)}; NLL {written(better['nll'])};"
            f" ECE {written(better['ece'])}",
            f"in every setting error {LIKE:g} times at most, NLL and ECE {BETTER:g} times at most",
            f"{name}, against the standard network",
        ),
        Verdict(
            "in-distribution",
            near if decided else None,
            f"ratios of NLL: to temperature scaling {written(close['temperature_scaling'])}; to "
            f"the ensemble {written(close['deep_ensemble'])}",
            f"{CLOSE:g} times at most in every setting",
            f"{name}, against temperature scaling and the ensemble",
        ),
    ]


def _against_standard(
    found: Comparison, methods: Sequence[str], quantity: str
) -> dict[str, tuple[float, float]]:
    """Return the means of methods and of the standard network, for each setting that has both."""
    return {
        f"{method} {label(setting)}": (
            found.mean(setting, method, quantity),
            found.mean(setting, "standard", quantity),
        )
        for method in methods
        for setting in found.settings
        if method in found.methods(setting)
    }


def _post_hoc(found: Comparison, decided: bool) -> Verdict:
    """Return whether methods that come after training leave the error as it is."""
    methods = ("temperature_scaling", "laplace_grid", "laplace_marglik")
    pairs = _against_standard(found, methods, "error")
    moved = {name: after - before for name, (after, before) in pairs.items()}
    return Verdict(
        "in-distribution",
        all(abs(points) <= 0.2 for points in moved.values()) if decided else None,
        "error after minus error before, in points: "
        + ", ".join(f"{name} {points:+.2f}" for name, points in moved.items()),
        "0.2 points at most: temperatures change nothing, probit Laplace a few images of 5,000",
        "what comes after training leaves the error as it is",
    )


def _worse(found: Comparison, decided: bool) -> Verdict:
    """Return whether Laplace or mean-field VI make the NLL worse somewhere."""
    methods = ("laplace_grid", "laplace_marglik", "mean_field_vi")
    pairs = _against_standard(found, methods, "nll")
    ratios = {name: theirs / standard for name, (theirs, standard) in pairs.items()}
    return Verdict(
        "in-distribution",
        any(ratio > 1 for ratio in ratios.values()) if decided else None,
        "NLL against the standard network's: "
        + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()),
        "above 1 in one setting at least",
        "Laplace and mean-field VI sometimes worsen NLL",
    )


def _averaging(found: Comparison, decided: bool) -> Verdict:
    """Return whether it matters what is averaged over functions."""
    shares = {
        f"{method} {label(setting)}": found.mean(setting, method, "averaging/log_probs/nll")
        / found.mean(setting, method, "averaging/probs/nll")
        - 1
        for method in NAMES
        for setting in found.settings
    }
    return Verdict(
        "averaging",
        all(abs(share) <= ALIKE for share in shares.values()) if decided else None,
        "NLL with log-probabilities averaged (the same as with logits), against probabilities: "
        + ", ".join(f"{name} {share:+.1%}" for name, share in shares.items()),
        f"within {ALIKE:.0%} in every setting, at temperature 1",
        "IBVI",
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
    for setting in found.settings:
        title = label(setting)
        for ending in ("pdf", "png"):
            plot_comparison(
                points(found, setting, ("error", "nll", "ece")),
                folder / f"{title.replace(' ', '_')}.{ending}",
                f"{title}: test images, means and standard errors",
            )


if __name__ == "__main__":
    run(sys.modules[__name__])
