"""From results of single cells to means over seeds, with their uncertainty."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REFERENCE = "implicit_bias_vi"  # what other methods are compared with


@dataclass(frozen=True)
class Quantity:
    """A number that results have.

    Args:
        title: What it is called.
        format: How it is written.
        less: Whether less is better.
    """

    title: str
    format: str = ".3f"
    less: bool = True


QUANTITIES: dict[str, Quantity] = {
    "error": Quantity("error, %", ".2f"),
    "nll": Quantity("NLL"),
    "ece": Quantity("ECE", ".4f"),
    "aurc": Quantity("AURC (risk over coverage)", ".4f"),
    "corrupted_error": Quantity("error, %", ".2f"),
    "corrupted_nll": Quantity("NLL"),
    "corrupted_ece": Quantity("ECE"),
    "seconds": Quantity("seconds", ".3g"),
    "parameters": Quantity("numbers kept", ",.0f"),
}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Args:
        mean: The mean; NaN if a number was not finite.
        error: Its standard error; NaN from one seed.
        count: How many seeds.
        difference: To the reference, the mean over the seeds that both have; None without any.
        p: How likely a difference as large would be by chance, from a two-sided t-test over these
            seeds; None from fewer than two.
    """

    mean: float
    error: float
    count: int
    difference: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class Row:
    """The results of a method on a problem.

    Args:
        data: Name of the problem.
        parametrization: "sp" or "mup".
        method: Name of the method.
        numbers: Estimates by name: those of `QUANTITIES`, `corrupted/NAME/error` (and nll, ece) for
            each corruption, `foreign/NAME/auroc` for each foreign set, and `averaging/WAY/nll` for
            each way to combine functions.
    """

    data: str
    parametrization: str
    method: str
    numbers: Mapping[str, Estimate]


def numbers_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a result by their names in a `Row`."""
    found = {**_three(result["test"]), "aurc": _number(result["test"]["aurc"])}
    each = {name: _three(scores) for name, scores in result["corrupted"].items()}
    for name in ("error", "nll", "ece"):
        if each:
            found[f"corrupted_{name}"] = statistics.fmean(three[name] for three in each.values())
        found |= {f"corrupted/{kind}/{name}": three[name] for kind, three in each.items()}
    for kind, scores in result["foreign"].items():
        found[f"foreign/{kind}/auroc"] = _number(scores["auroc"])
    for way, scores in result["averaging"].items():
        found[f"averaging/{way}/nll"] = _number(scores["nll"])
    found["seconds"] = result["cost"]["seconds"]
    found["parameters"] = result["cost"]["parameters"]
    return found


def summarize(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a row for each problem, parametrization and method, in the order of the results."""
    groups: dict[tuple[str, str, str], dict[int, dict[str, float]]] = {}
    for result in results:
        cell = result["cell"]
        key = (cell.data, cell.parametrization, cell.method)
        groups.setdefault(key, {})[cell.seed] = numbers_of(result)
    rows = []
    for (data, parametrization, method), seeds in groups.items():
        reference = groups.get((data, parametrization, REFERENCE), {})
        if method == REFERENCE:
            reference = {}
        names = next(iter(seeds.values()))
        numbers = {name: estimate(_of(seeds, name), _of(reference, name)) for name in names}
        rows.append(Row(data, parametrization, method, numbers))
    return rows


def estimate(values: Mapping[int, float], reference: Mapping[int, float] | None = None) -> Estimate:
    """Return the mean of values by seed, and how it compares with those of a reference."""
    numbers = list(values.values())
    common = sorted(values.keys() & (reference or {}).keys())
    differences = [values[seed] - (reference or {})[seed] for seed in common]
    return Estimate(
        statistics.fmean(numbers),
        standard_error(numbers),
        len(numbers),
        statistics.fmean(differences) if differences else None,
        p_value(differences),
    )


def standard_error(numbers: Sequence[float]) -> float:
    """Return the standard error of a mean; NaN from a single number."""
    if len(numbers) < 2 or not all(map(math.isfinite, numbers)):
        return math.nan
    return statistics.stdev(numbers) / math.sqrt(len(numbers))


def p_value(differences: Sequence[float]) -> float | None:
    """Return how likely a mean as far from 0 would be by chance; None from fewer than two."""
    error = standard_error(differences)
    if math.isnan(error):
        return None
    mean = abs(statistics.fmean(differences))
    if error == 0:
        return 0.0 if mean else 1.0
    return 1 - within(mean / error, len(differences) - 1)


def within(t: float, freedom: int) -> float:
    """Return the probability that Student's t lies in (-t, t), for whole degrees of freedom.

    The closed forms of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for k in range(2 + odd, freedom, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if not odd:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))


def _three(scores: Mapping[str, Any]) -> dict[str, float]:
    error = 100 * (1 - _number(scores["accuracy"]))
    return {"error": error, "nll": _number(scores["nll"]), "ece": _number(scores["ece"])}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _of(seeds: Mapping[int, Mapping[str, float]], name: str) -> dict[int, float]:
    return {seed: numbers[name] for seed, numbers in seeds.items() if name in numbers}
