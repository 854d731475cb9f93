"""Error, NLL and ECE of all methods on test images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tacit.studies.bench.summary import QUANTITIES, standard_error
from tacit.studies.experiments import comparison
from tacit.studies.experiments.comparison import (
    BASELINES,
    ENSEMBLE,
    MEAN_FIELD,
    NAMES,
    OURS,
    POST_HOC,
    Comparison,
    label,
    parts,
    short,
)
from tacit.studies.experiments.evidence import (
    Interval,
    all_of,
    any_of,
    higher,
    listed,
    lower,
    negated,
    no_different,
    paired,
    within,
)
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.verdict import Verdict
from tacit.studies.plots import plot_comparison


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts on the paper's recipe; our defaults and other data are our questions."""
    found = []
    for numbers, paper in parts(results):
        where = "" if paper else "other data: "
        for method, name in NAMES.items():
            if method in {row["method"] for row in numbers.rows}:
                judge = partial(judge_methods, numbers, arguments, method == OURS or not paper)
                found += _of_method(numbers, method, f"{where}{name}: ", judge)
                found.append(_averaging(numbers, method, f"{where}{name}", judge))
        judge = partial(judge_methods, numbers, arguments, not paper)
        found += [_post_hoc(numbers, where, judge), _worse(numbers, where, judge)]
    return found


def judge_methods(
    found: Comparison,
    arguments: Mapping[str, Any],
    ours: bool,
    methods: Sequence[str],
    holds: bool | None,
    measured: str,
    criterion: str,
    subject: str,
    number: str,
    *,
    claim: str = "in-distribution",
    lacking: str = "",
) -> Verdict:
    """Return the verdict that compares some methods; questions of ours are decided at any size."""
    lacking = lacking or ("" if ours else found.lacks(methods, arguments))
    return Verdict(claim, holds, measured, criterion, subject, number, lacking, ours)


def _of_method(
    found: Comparison, method: str, name: str, judge: Callable[..., Verdict]
) -> list[Verdict]:
    """Return verdicts on the error, the NLL and the calibration of a method."""
    error = found.differences(method, "standard", "error")
    spread = {label(setting): found.spread(setting, "error") for setting in found.settings}
    nll = found.differences(method, "standard", "nll")
    worse = [other for other in BASELINES if other != "temperature_scaling"]
    others = {
        f"{short(other)} {at}": each
        for other in worse
        for at, each in found.differences(method, other, "ece").items()
    }
    share = found.ratio(method, "standard", "nll")
    close = {
        other: found.differences(method, other, "nll")
        for other in ("temperature_scaling", ENSEMBLE)
    }
    return [
        judge(
            (method, "standard"),
            all_of(within(each, spread[at]) for at, each in error.items()),
            f"test error minus that of the standard network, in points: {listed(error)}; two "
            "standard networks from different seeds differ by "
            + ", ".join(f"{at} {value:.2f}" for at, value in spread.items()),
            "in every setting no larger than the difference between two standard networks: the "
            "test errors are similar",
            f"{name}test error similar to the standard network",
            _first(error, "points"),
        ),
        judge(
            (method, "standard"),
            all_of(lower(each) for each in nll.values()),
            f"NLL minus that of the standard network: {listed(nll)}; {share:.2f} of it; minus that "
            f"of temperature scaling {listed(close['temperature_scaling'])}; minus that of the "
            f"ensemble {listed(close[ENSEMBLE])}",
            "below the standard network's in every setting, over seeds",
            f"{name}NLL improved over the standard network",
            f"{share:.2f} times",
        ),
        judge(
            (method, *worse),
            all_of(lower(each) for each in others.values()),
            f"ECE minus that of others: {listed(others)}",
            "below that of every other method but temperature scaling and the ensemble, in every "
            "setting, over seeds: these three are the best calibrated",
            f"{name}among the best calibrated",
            _first(others),
        ),
    ]


def _first(found: Mapping[str, Interval], unit: str = "") -> str:
    """Return the number of the first setting."""
    return "".join(f"{each.mean:+.2g} {unit}".rstrip() for each in list(found.values())[:1])


def _post_hoc(found: Comparison, where: str, judge: Callable[..., Verdict]) -> Verdict:
    """Return the verdict on post-hoc methods: they do not change the error."""
    moved = {
        f"{method} {at}": each
        for method in POST_HOC
        for at, each in found.differences(method, "standard", "error").items()
    }
    spread = {label(setting): found.spread(setting, "error") for setting in found.settings}
    states = [
        all_of([within(each, spread[at]), within(negated(each), spread[at])])
        for method in POST_HOC
        for at, each in found.differences(method, "standard", "error").items()
    ]
    return judge(
        ("standard", *POST_HOC),
        all_of(states),
        f"test error minus that of the standard network, in points: {listed(moved)}",
        "smaller than the difference between two standard networks from different seeds",
        f"{where}post-hoc methods leave the error unchanged",
        _first(moved, "points"),
    )


def _worse(found: Comparison, where: str, judge: Callable[..., Verdict]) -> Verdict:
    """Return the verdict on Laplace and mean-field VI: they sometimes increase the NLL."""
    methods = ("laplace_grid", "laplace_marglik", "mean_field_vi", MEAN_FIELD)
    ratios = {
        f"{short(method)} {at}": each
        for method in methods
        for at, each in found.differences(method, "standard", "nll").items()
    }
    return judge(
        ("standard", *methods),
        any_of(higher(each) for each in ratios.values()),
        f"NLL minus that of the standard network: {listed(ratios)}",
        "above 0 over seeds in at least one setting",
        f"{where}Laplace or mean-field VI sometimes increase the NLL",
        f"{max((each.mean for each in ratios.values()), default=math.nan):+.2g}",
    )


def _averaging(found: Comparison, method: str, name: str, judge: Callable[..., Verdict]) -> Verdict:
    """Return the verdict on what is averaged over functions, each with its own temperature."""
    kind = "tempered_nll"
    rows = [row["numbers"] for row in found.rows if row["method"] == method]
    lacking = ""
    if any(f"averaging/probs/{kind}" not in row for row in rows):
        lacking, kind = "the run lacks a temperature for each averaging", "nll"
    changes = {
        label(setting): paired(
            found.values(setting, method, f"averaging/log_probs/{kind}"),
            found.values(setting, method, f"averaging/probs/{kind}"),
        )
        for setting in found.both(method, method)
    }
    return judge(
        (method,),
        None if kind == "nll" else all_of(no_different(each) for each in changes.values()),
        "NLL of averaged log-probabilities (or logits, which give the same) minus that of averaged "
        f"probabilities: {listed(changes)}",
        "no difference over seeds in any setting, each averaging with a temperature of its own",
        name,
        _first(changes),
        claim="averaging",
        lacking=lacking,
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
    "paper" on all images of MNIST, 200 epochs, 5 seeds, learning rate 0.005 (mean-field VI, whose
    steps take 13 times as long, with 2 seeds), and with `--data cifar10,cifar100,tiny_imagenet`
    pretrained ResNet-34. The training runs are saved in the folder `bench` beside that of the
    results, where `corruptions` finds them too; an interrupted run resumes.
    """,
    figure="Fig. 4 and two figures of the supplement",
    caption="Error, NLL and ECE of each method on test images, means over seeds ± standard errors",
    claims=("in-distribution", "averaging"),
    scales=comparison.SCALES,
    minutes=comparison.MINUTES,
    needs=comparison.NEEDS,
    compute=partial(comparison.compute, kinds=("error", "nll", "ece", "averaging")),
    verdicts=verdicts,
    draw=draw,
)
