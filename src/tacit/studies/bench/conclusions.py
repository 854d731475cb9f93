"""A comparison in sentences: which method is best at what, by how much, and how certain that is."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.studies.bench.summary import QUANTITIES, Estimate, Quantity, estimate, numbers_of

SIGNIFICANCE = 0.05
SENTENCES = 3
FOREIGN = "foreign"  # the mean AUROC over all foreign sets
SUBJECTS = {
    "nll": "NLL on test images",
    "corrupted_nll": "NLL on corrupted images",
    FOREIGN: "AUROC of detection of foreign images",
    "error": "error on test images, in percent,",
    "ece": "ECE on test images",
}
Seeds = Mapping[int, float]


@dataclass(frozen=True)
class Lead:
    """The best method on a problem.

    Args:
        method: Its name.
        mean: Its mean over seeds.
        following: The method with the next best mean that differs.
        difference: The next method's numbers minus those of the best, over common seeds.
    """

    method: str
    mean: float
    following: str
    difference: Estimate


def conclusions(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each of the first quantities of `SUBJECTS` that results have.

    Args:
        results: From `read_results`.
    """
    found = [
        sentence(subject, name, leads)
        for name, subject in SUBJECTS.items()
        if (leads := list(find_leads(results, name)))
    ]
    return found[:SENTENCES]


def find_leads(results: Sequence[Mapping[str, Any]], name: str) -> Iterator[Lead]:
    """Yield the best method at a quantity for each problem on which methods differ.

    Methods with a diverged run are left out, whose means are not finite. So are problems on which
    the best mean is not better over common seeds.
    """
    problems: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for result in results:
        cell, value = result["cell"], _value(result, name)
        methods = problems.setdefault((cell.data, cell.parametrization), {})
        methods.setdefault(cell.method, {})[cell.seed] = value
    sign = 1 if _quantity(name).lower_is_better else -1
    for methods in problems.values():
        means = {method: statistics.fmean(seeds.values()) for method, seeds in methods.items()}
        means = {method: mean for method, mean in means.items() if math.isfinite(mean)}
        if not means:
            continue
        best = min(means, key=lambda method: sign * means[method])
        others = {method: mean for method, mean in means.items() if mean != means[best]}
        if others:
            following = min(others, key=lambda method: sign * others[method])
            difference = _difference(methods[following], methods[best], sign)
            if difference is not None and difference.mean > 0:
                yield Lead(best, means[best], following, difference)


def sentence(subject: str, name: str, leads: Sequence[Lead]) -> str:
    """Return which methods are best at a quantity, and their leads over the next method."""
    quantity = _quantity(name)
    extreme = "lowest" if quantity.lower_is_better else "highest"
    start = f"{subject[0].upper()}{subject[1:]} is {extreme} with "
    if len(leads) == 1:
        (lead,) = leads
        start += f"{lead.method}, {lead.mean:{quantity.format}}"
        return f"{start}; the lead over {lead.following} is {_size(leads, quantity)}."
    counts = Counter(lead.method for lead in leads).most_common()
    of = f" of {len(leads)} problems"
    winners = [f"{method} on {count}{of * (i == 0)}" for i, (method, count) in enumerate(counts)]
    return f"{start}{_listed(winners)}; leads over the next method are {_size(leads, quantity)}."


def _size(leads: Sequence[Lead], quantity: Quantity) -> str:
    """Return the smallest and the largest lead, and how many are significant."""
    ordered = sorted(leads, key=lambda lead: lead.difference.mean)
    ends = [lead.difference for lead in dict.fromkeys((ordered[0], ordered[-1]))]
    texts = []
    for end in ends:
        error = "" if math.isnan(end.error) else f" ± {format(end.error, quantity.format)}"
        texts.append(format(end.mean, quantity.format) + error)
    text = " to ".join(texts)
    tested = [lead.difference.p for lead in leads if lead.difference.p is not None]
    if not tested:
        return f"{text}, from one seed"
    clear = sum(p < SIGNIFICANCE for p in tested)
    if len(leads) == 1:
        return f"{text}, {'' if clear else 'not '}significant"
    return f"{text}, {clear or 'none'} of them significant"


def _difference(worse: Seeds, better: Seeds, sign: int) -> Estimate | None:
    """Return the lead of the better over common seeds, with the p-value for no difference."""
    leads = {s: sign * (worse[s] - better[s]) for s in sorted(worse.keys() & better.keys())}
    return estimate(leads, dict.fromkeys(leads, 0.0)) if leads else None


def _value(result: Mapping[str, Any], name: str) -> float:
    numbers = numbers_of(result)
    if name != FOREIGN:
        return numbers.get(name, math.nan)
    found = [value for key, value in numbers.items() if key.startswith("foreign/")]
    return statistics.fmean(found) if found else math.nan


def _quantity(name: str) -> Quantity:
    return QUANTITIES.get(name, Quantity(name, lower_is_better=False))


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
