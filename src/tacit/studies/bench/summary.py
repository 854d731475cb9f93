"""Summary of results: means over seeds, with standard errors and paired tests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REFERENCE = "implicit_bias_vi"  # the method that others are tested against


@dataclass(frozen=True)
class Quantity:
    """A quantity in the results, and how to show it.

    Args:
        title: Its name in tables and figures.
        format: Format specification of its values.
        lower_is_better: Whether lower values are better.
    """

    title: str
    format: str = ".3f"
    lower_is_better: bool = True


QUANTITIES: dict[str, Quantity] = {
    "error": Quantity("error, %", ".2f"),
    "nll": Quantity("NLL"),
    "ece": Quantity("ECE", ".4f"),
    "aurc": Quantity("AURC", ".4f"),
    "corrupted_error": Quantity("error, %", ".2f"),
    "corrupted_nll": Quantity("NLL"),
    "corrupted_ece": Quantity("ECE"),
    "seconds": Quantity("seconds", ".3g"),
    "parameters": Quantity("stored parameters", ",.0f"),
}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Args:
        mean: The mean; NaN if a value is not finite.
        error: Its standard error; NaN for a single seed.
        count: Number of seeds.
        difference: Mean difference from the reference over common seeds; None if there are none.
        p: P-value of the difference, from a two-sided paired t-test over common seeds; None for
            fewer than two.

    Examples:
        >>> nll = Estimate(mean=0.071, error=0.002, count=3, difference=-0.01, p=0.04)
        >>> f"{nll.mean} ± {nll.error}, {-nll.difference} below the reference"
        '0.071 ± 0.002, 0.01 below the reference'
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
            each corruption, `foreign/NAME/auroc` for each foreign set, and
            `averaging/WAY/nll` for each averaging of functions.

    Examples:
        >>> row = Row("digits", "sp", "swag", {"error": Estimate(2.1, 0.1, 3)})
        >>> row.numbers["error"].mean
        2.1
    """

    data: str
    parametrization: str
    method: str
    numbers: Mapping[str, Estimate]


def numbers_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of a result by their names in a `Row`."""
    found = {**_error_nll_ece(result["test"]), "aurc": _number(result["test"]["aurc"])}
    each = {name: _error_nll_ece(scores) for name, scores in result["corrupted"].items()}
    for name in ("error", "nll", "ece"):
        if each:
            found[f"corrupted_{name}"] = statistics.fmean(scores[name] for scores in each.values())
        found |= {f"corrupted/{kind}/{name}": scores[name] for kind, scores in each.items()}
    for kind, scores in result["foreign"].items():
        found[f"foreign/{kind}/auroc"] = _number(scores["auroc"])
    for way, scores in result["averaging"].items():
        for name in ("nll", "tempered_nll"):
            if name in scores:
                found[f"averaging/{way}/{name}"] = _number(scores[name])
    found["seconds"] = result["cost"]["seconds"]
    found["parameters"] = result["cost"]["parameters"]
    return found


def summarize(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a row per problem, parametrization and method, in the order of the results.

    Args:
        results: From `read_results`.

    Examples:
        >>> from tacit.studies.bench import Cell, measure
        >>> sizes = {"train_size": 64, "test_size": 10, "corrupted_size": 2}
        >>> cells = [Cell("digits", "standard", seed=seed, epochs=1, **sizes) for seed in range(2)]
        >>> (row,) = summarize([{**measure(cell), "cell": cell} for cell in cells])
        >>> row.method, row.numbers["nll"].count
        ('standard', 2)
    """
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
        numbers = {
            name: estimate(_by_seed(seeds, name), _by_seed(reference, name)) for name in names
        }
        rows.append(Row(data, parametrization, method, numbers))
    return rows


def estimate(values: Mapping[int, float], reference: Mapping[int, float] | None = None) -> Estimate:
    """Return the mean of values by seed, and its difference from those of a reference."""
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
    """Return the standard error of the mean; NaN for fewer than two numbers."""
    if len(numbers) < 2 or not all(map(math.isfinite, numbers)):
        return math.nan
    return statistics.stdev(numbers) / math.sqrt(len(numbers))


def p_value(differences: Sequence[float]) -> float | None:
    """Return the p-value of a two-sided t-test for mean 0; None for fewer than two numbers."""
    error = standard_error(differences)
    if math.isnan(error):
        return None
    mean = abs(statistics.fmean(differences))
    if error == 0:
        return 0.0 if mean else 1.0
    return 1 - student_t_within(mean / error, len(differences) - 1)


def student_t_within(t: float, freedom: int) -> float:
    """Return the probability that Student's t with integer degrees of freedom lies in (-t, t).

    By the closed forms of Abramowitz and Stegun, 26.7.3 and 26.7.4.
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


def _error_nll_ece(scores: Mapping[str, Any]) -> dict[str, float]:
    error = 100 * (1 - _number(scores["accuracy"]))
    return {"error": error, "nll": _number(scores["nll"]), "ece": _number(scores["ece"])}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _by_seed(seeds: Mapping[int, Mapping[str, float]], name: str) -> dict[int, float]:
    return {seed: numbers[name] for seed, numbers in seeds.items() if name in numbers}
