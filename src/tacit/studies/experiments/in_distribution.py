"""Error, NLL and ECE of all methods on test images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tacit.studies.bench.summary import QUANTITIES, standard_error
from tacit.studies.experiments import comparison
from tacit.studies.experiments.comparison import NAMES, Comparison, format_ratios, label
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.verdict import Verdict
from tacit.studies.plots import plot_comparison

SEEDS = 3  # fewest seeds for a decision
# Largest ratios to the standard network: of a similar error, of a much better NLL or ECE.
SIMILAR, MUCH_BETTER = 1.1, 0.8
CLOSE = 1.2  # largest ratio of NLL to temperature scaling and to the ensemble
NO_DIFFERENCE = 0.05  # largest relative difference of NLL between averagings


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return the verdicts on the paper's recipe, on our defaults, and on the other methods."""
    found = Comparison(results["rows"])
    decided = found.seeds >= SEEDS
    return [
        verdict
        for method, name in NAMES.items()
        for verdict in _of_method(found, method, name, decided)
    ] + [_post_hoc(found, decided), _worse(found, decided), _averaging(found, decided)]


def _of_method(found: Comparison, method: str, name: str, decided: bool) -> list[Verdict]:
    """Return verdicts on a method against the standard network and against the best others."""
    error = found.ratios(method, "standard", "error")
    better = {n: found.ratios(method, "standard", n) for n in ("nll", "ece")}
    close = {
        other: found.ratios(method, other, "nll")
        for other in ("temperature_scaling", "deep_ensemble")
    }
    similar = all(ratio <= SIMILAR for ratio in error.values())
    improved = all(ratio <= MUCH_BETTER for each in better.values() for ratio in each.values())
    near = all(ratio <= CLOSE for each in close.values() for ratio in each.values())
    return [
        Verdict(
            "in-distribution",
            similar and improved if decided else None,
            f"ratios to the standard network: error {format_ratios(error)}; NLL "
            f"{format_ratios(better['nll'])}; ECE {format_ratios(better['ece'])}",
            f"in every setting at most {SIMILAR:g} for the error, {MUCH_BETTER:g} for NLL and ECE",
            f"{name} against the standard network",
        ),
        Verdict(
            "in-distribution",
            near if decided else None,
            f"ratios of NLL: to temperature scaling {format_ratios(close['temperature_scaling'])}; "
            f"to the ensemble {format_ratios(close['deep_ensemble'])}",
            f"at most {CLOSE:g} in every setting",
            f"{name} against temperature scaling and the ensemble",
        ),
    ]


def _against_standard(
    found: Comparison, methods: Sequence[str], quantity: str
) -> dict[str, tuple[float, float]]:
    """Return the means of methods and of the standard network, in each setting with both."""
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
    """Return the verdict on post-hoc methods: they do not change the error."""
    methods = ("temperature_scaling", "laplace_grid", "laplace_marglik")
    pairs = _against_standard(found, methods, "error")
    moved = {name: after - before for name, (after, before) in pairs.items()}
    return Verdict(
        "in-distribution",
        all(abs(points) <= 0.2 for points in moved.values()) if decided else None,
        "change of the error, in percentage points: "
        + ", ".join(f"{name} {points:+.2f}" for name, points in moved.items()),
        "at most 0.2: temperatures change no decision, probit Laplace a few of 5,000",
        "post-hoc methods do not change the error",
    )


def _worse(found: Comparison, decided: bool) -> Verdict:
    """Return the verdict on Laplace and mean-field VI: they sometimes increase the NLL."""
    methods = ("laplace_grid", "laplace_marglik", "mean_field_vi")
    pairs = _against_standard(found, methods, "nll")
    ratios = {name: theirs / standard for name, (theirs, standard) in pairs.items()}
    return Verdict(
        "in-distribution",
        any(ratio > 1 for ratio in ratios.values()) if decided else None,
        "ratios of NLL to the standard network: "
        + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()),
        "above 1 in at least one setting",
        "Laplace and mean-field VI sometimes increase the NLL",
    )


def _averaging(found: Comparison, decided: bool) -> Verdict:
    """Return the verdict on averaging log-probabilities instead of probabilities."""
    shares = {
        f"{method} {label(setting)}": found.mean(setting, method, "averaging/log_probs/nll")
        / found.mean(setting, method, "averaging/probs/nll")
        - 1
        for method in NAMES
        for setting in found.settings
    }
    return Verdict(
        "averaging",
        all(abs(share) <= NO_DIFFERENCE for share in shares.values()) if decided else None,
        "NLL when averaging log-probabilities (or logits), relative to probabilities: "
        + ", ".join(f"{name} {share:+.1%}" for name, share in shares.items()),
        f"within {NO_DIFFERENCE:.0%} in every setting, at temperature 1",
        "IBVI",
    )


def points(
    found: Comparison, setting: comparison.Setting, quantities: Sequence[str]
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
    """Draw error, NLL and ECE from saved results, one figure per setting."""
    found = Comparison(results["rows"])
    for setting in found.settings:
        title = label(setting)
        for ending in ("pdf", "png"):
            plot_comparison(
                points(found, setting, ("error", "nll", "ece")),
                folder / f"{title.replace(' ', '_')}.{ending}",
                f"{title}: test images, means ± standard errors",
            )


EXPERIMENT = Experiment(
    name="in_distribution",
    title="The claims `in-distribution` and `averaging`: predictions on test images.",
    about="""
    The paper's fourth figure: error, NLL and ECE of all methods in both parametrizations. The scale
    "cpu" trains LeNet-5 on 10,000 images of MNIST and of Fashion-MNIST, 20 epochs, 3 seeds;
    "paper" uses the paper's datasets, pretrained ResNet-34, 200 epochs and 5 seeds. The training
    runs are saved in the folder `bench` beside that of the results, where `corruptions` finds them
    too; an interrupted run resumes.
    """,
    claims=("in-distribution", "averaging"),
    scales=comparison.SCALES,
    minutes=comparison.MINUTES,
    needs=comparison.NEEDS,
    compute=partial(comparison.compute, kinds=("error", "nll", "ece", "averaging")),
    verdicts=verdicts,
    draw=draw,
)
