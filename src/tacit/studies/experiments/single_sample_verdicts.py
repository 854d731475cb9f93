"""Verdicts on training with one or several draws of the weights, sentence by sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

from tacit.studies.experiments.evidence import (
    all_of,
    higher,
    interval,
    lower,
    no_higher,
    paired,
    shortfall,
)
from tacit.studies.experiments.verdict import Verdict

WAYS: dict[str, tuple[int, dict[str, int]]] = {  # passes per step, keywords of the model
    "M=1": (1, {}),
    "M=2": (2, {"samples": 2}),
    "M=4": (4, {"samples": 4}),
    "M=8": (8, {"samples": 8}),
    "8 draws": (1, {"draws": 8}),
}
MOMENTA = {"SGD": 0.0, "SGD with momentum": 0.9}
SMALL = 0.003  # the learning rate of the paper's third figure
CHANCE = 90.0  # error in percent of a run that diverged
PAPER = {"steps": 21_100, "train_size": 54_000}


@dataclass(frozen=True)
class Run:
    """Test errors in percent of one optimizer by way, learning rate, step and seed."""

    optimizer: str
    errors: Mapping[tuple[str, float, int, int], float]
    chosen: Mapping[tuple[str, int], float]  # learning rate by way and seed, after the last step
    last: int

    @classmethod
    def read(cls, rows: Sequence[dict[str, Any]], optimizer: str) -> Run:
        """Return the errors of saved rows; a run that diverged has the error of chance."""
        rows = [row for row in rows if row["optimizer"] == optimizer]
        last = max(row["step"] for row in rows)
        errors, nll = {}, {}
        for row in rows:
            key = row["way"], row["lr"], row["step"], row["seed"]
            errors[key] = CHANCE if row["error"] is None else 100 * row["error"]
            nll[key] = math.inf if row["validation"] is None else row["validation"]
        chosen = {
            (way, seed): min(
                (lr for w, lr, step, s in errors if (w, step, s) == (way, last, seed)),
                key=lambda lr: nll[way, lr, last, seed],
            )
            for way, _, _, seed in errors
        }
        return cls(optimizer, errors, chosen, last)

    def best(self, way: str) -> dict[int, float]:
        """Return the error after the last step at the learning rate that validation chooses."""
        return {
            s: self.errors[w, lr, self.last, s] for (w, s), lr in self.chosen.items() if w == way
        }

    def at(self, way: str, lr: float, step: int) -> dict[int, float]:
        """Return the errors at a learning rate and step by seed."""
        return {
            s: error for (w, rate, t, s), error in self.errors.items()
            if (w, rate, t) == (way, lr, step)
        }  # fmt: skip

    def rate(self, way: str) -> dict[int, float]:
        """Return the logarithm, base 2, of the chosen learning rate by seed."""
        return {s: math.log2(lr) for (w, s), lr in self.chosen.items() if w == way}


Finding: TypeAlias = tuple[bool | None, str, str, str]
"""Whether a sentence holds, the numbers, the criterion, and the one number that a table shows."""

Sentence: TypeAlias = Callable[[Mapping[str, Run]], Finding]


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return verdicts on each sentence of the paper, and on our draws in one pass.

    Each is judged on the seeds for which all trainings that it compares are finished.
    """
    rows = results["rows"]
    grid = tuple(arguments.get("rates") or sorted({row["lr"] for row in rows}))
    both, two = tuple(MOMENTA), ("M=1", "M=8")
    lacking = shortfall(arguments, PAPER)

    def judge(subject: str, sentence: Sentence, needed: Sequence[Iterable[Any]],
              lacking: str = lacking, ours: bool = False) -> Verdict:  # fmt: skip
        found = _complete(rows, *map(tuple, needed))
        optimizers, ways, rates = (", ".join(map(str, each)) for each in needed)
        if not found:
            return Verdict(
                "single-sample", None, "nothing yet",
                f"needs the training runs of {optimizers}; {ways}; learning rates {rates}", subject,
                lacking="no seed has all training runs that are compared", ours=ours,
            )  # fmt: skip
        runs = {name: Run.read(found, name) for name in needed[0]}
        holds, measured, criterion, number = sentence(runs)
        return Verdict("single-sample", holds, measured, criterion, subject, number, lacking, ours)

    sentences = []
    for name in MOMENTA:
        sentences += [
            judge(f"{name}: one sample trains as well as eight", _gap, ([name], two, grid)),
            judge(f"{name}: fewer samples need a smaller rate", _moved, ([name], two, grid)),
        ]
    return [
        *sentences,
        judge(
            "for a fixed rate generalization plateaus with more samples",
            _plateau, (both, [way for way in WAYS if "M" in way], grid),
        ),
        judge(
            f"at a rate of {SMALL:g} the gap vanishes with more steps", _vanishes,
            (both, two, [SMALL]),
        ),
        judge(
            "momentum improves generalization, and few samples then need a smaller rate",
            _momentum, (both, two, grid),
        ),
        *(
            judge(
                f"{name}: 8 draws in one pass match M=8", _draws,
                ([name], ("8 draws", "M=8"), grid), lacking="", ours=True,
            )
            for name in MOMENTA
        ),
    ]  # fmt: skip


def _complete(
    rows: Sequence[dict[str, Any]],
    optimizers: Sequence[str],
    ways: Sequence[str],
    rates: Sequence[float],
) -> list[dict[str, Any]]:
    """Return the rows of these trainings, of the seeds for which none is missing."""
    needed = set(product(optimizers, ways, rates))
    finished: dict[int, set[Any]] = {}
    for row in rows:
        finished.setdefault(row["seed"], set()).add((row["optimizer"], row["way"], row["lr"]))
    return [
        row
        for row in rows
        if (row["optimizer"], row["way"], row["lr"]) in needed and needed <= finished[row["seed"]]
    ]


def _gap(runs: Mapping[str, Run]) -> Finding:
    (run,) = runs.values()
    gap = paired(run.best("M=1"), run.best("M=8"))
    return (
        no_higher(gap),
        f"test error of M=1 minus that of M=8, in points, after {run.last:,} steps: {gap}",
        "no larger over seeds, each at the learning rate that validation chooses: more steps or "
        "momentum close the gap",
        f"{gap.mean:+.2f} points",
    )


def _moved(runs: Mapping[str, Run]) -> Finding:
    (run,) = runs.values()
    moved = paired(run.rate("M=1"), run.rate("M=8"))
    means = {way: statistics.fmean(run.rate(way).values()) for way in ("M=1", "M=8")}
    return (
        lower(moved),
        f"log2 of the learning rate that validation chooses, M=1 minus M=8: {moved}; "
        + ", ".join(f"{way} 2^{mean:.1f}" for way, mean in means.items()),
        "smaller for M=1 than for M=8 at the same number of steps, over seeds",
        f"2^{moved.mean:+.1f} times",
    )


def _plateau(runs: Mapping[str, Run]) -> Finding:
    """Judge: for a fixed rate, more samples soon bring little."""
    gains: dict[str, list[float]] = {"1 to 2": [], "4 to 8": []}
    differences: dict[int, list[float]] = {}
    for run in runs.values():
        for lr in {lr for _, lr, _, _ in run.errors}:
            errors = {way: run.at(way, lr, run.last) for way in WAYS}
            for s in errors["M=1"]:
                first = errors["M=1"][s] - errors["M=2"][s]
                later = errors["M=4"][s] - errors["M=8"][s]
                gains["1 to 2"].append(first)
                gains["4 to 8"].append(later)
                differences.setdefault(s, []).append(first - later)
    found = interval(statistics.fmean(values) for values in differences.values())
    return (
        higher(found),
        "fall of the test error from M = "
        + ", ".join(f"{name}: {statistics.fmean(each):.2f} points" for name, each in gains.items())
        + f"; difference {found}",
        "at the same learning rate the error falls more from M=1 to 2 than from M=4 to 8, mean "
        "over rates and optimizers",
        f"{statistics.fmean(gains['4 to 8']):.2f} points from 4 to 8",
    )


def _vanishes(runs: Mapping[str, Run]) -> Finding:
    """Judge the paper's small learning rate: the gap vanishes with more steps."""
    states, lines = [], []
    for name, run in runs.items():
        steps = sorted({step for _, _, step, _ in run.errors})
        gaps = {t: paired(run.at("M=1", SMALL, t), run.at("M=8", SMALL, t)) for t in steps}
        largest = max(gaps.values(), key=lambda gap: gap.mean)
        states.append(no_higher(gaps[run.last]))
        lines.append(f"{name}: at most {largest.mean:+.2f}, at the end {gaps[run.last]}")
    return (
        all_of(states),
        "test error of M=1 minus that of M=8, in points; " + "; ".join(lines),
        f"at a learning rate of {SMALL:g}, the paper's example, no larger than 0 at the end, over "
        "seeds, for SGD and with momentum",
        f"{gaps[run.last].mean:+.2f} points at the end, {run.optimizer}",
    )


def _momentum(runs: Mapping[str, Run]) -> Finding:
    """Judge momentum: better, but one sample needs a smaller rate."""
    plain, momentum = (runs[name] for name in MOMENTA)
    gain = paired(momentum.best("M=8"), plain.best("M=8"))
    rate = paired(momentum.rate("M=1"), plain.rate("M=1"))
    return (
        all_of([lower(gain), lower(rate)]),
        f"with momentum minus without: test error of M=8 {gain} points; log2 of the rate that "
        f"validation chooses for M=1 {rate}",
        "both below 0 over seeds",
        f"{gain.mean:+.2f} points",
    )


def _draws(runs: Mapping[str, Run]) -> Finding:
    (run,) = runs.values()
    gap = paired(run.best("8 draws"), run.best("M=8"))
    return (
        no_higher(gap),
        f"test error of 8 draws in one pass minus that of M=8, in points: {gap}, at an eighth of "
        "the passes",
        "no larger over seeds, each at the learning rate that validation chooses",
        f"{gap.mean:+.2f} points",
    )
