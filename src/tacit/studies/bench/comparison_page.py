"""The report of a comparison: one page, as HTML and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.methods.by_name import METHODS
from tacit.studies.bench.conclusions import SIGNIFICANCE, conclusions
from tacit.studies.bench.grid import Cell
from tacit.studies.bench.results import failed_names
from tacit.studies.bench.summary import QUANTITIES, REFERENCE, Estimate, Quantity, Row, summarize
from tacit.studies.plots import plot_comparison, plot_cost, plot_heat
from tacit.studies.report import Page

MARKS = {True: " ↑", False: " ↓"}  # significantly better or worse than the reference
COSTS = ("seconds", "parameters")  # quantities that are not tested for significance


def make_report(
    results: Sequence[Mapping[str, Any]],
    title: str = "Methods compared",
    failed: Sequence[str] = (),
) -> Page:
    """Return a page with tables and figures of results.

    Args:
        results: From `read_results`.
        title: Title of the page.
        failed: Names of the cells that failed, and so have no result.

    Returns:
        The page, which `write` saves as HTML or as Markdown.

    Examples:
        >>> from tacit.studies.bench import measure
        >>> sizes = {"train_size": 64, "test_size": 10, "corrupted_size": 2}
        >>> cell = Cell("digits", "standard", epochs=1, **sizes)
        >>> page = make_report([{**measure(cell), "cell": cell}], title="A plain network")
        >>> "A plain network" in page.render()
        True
    """
    order = [*METHODS, *(result["cell"].method for result in results)]
    rows = sorted(summarize(results), key=lambda row: order.index(row.method))
    page = Page(title)
    if summary := conclusions(results):
        page.text(" ".join(summary))
        page.text(
            "Leads are mean differences over common seeds ± standard errors; significant: "
            f"p < {SIGNIFICANCE} in a two-sided paired t-test, not corrected for multiple testing.",
            soft=True,
        )
    page.text("Tables: means over seeds ± standard errors. sp: standard parametrization; mup: muP.")
    if any(found.p is not None for row in rows for found in row.numbers.values()):
        page.text(
            f"↑ and ↓: significantly better and worse than {REFERENCE} (p < {SIGNIFICANCE}, "
            "two-sided paired t-test over common seeds, not corrected for multiple testing)."
        )
    if failed:
        page.text(f"Failed training runs, missing below: {', '.join(failed)}.")
    for data, parametrization in dict.fromkeys((row.data, row.parametrization) for row in rows):
        own = [row for row in rows if (row.data, row.parametrization) == (data, parametrization)]
        cells = [
            result["cell"] for result in results
            if (result["cell"].data, result["cell"].parametrization) == (data, parametrization)
        ]  # fmt: skip
        page.heading(f"{data}, {parametrization}")
        page.text(_settings(cells), soft=True)
        _section(page, own)
    page.heading("Methods")
    page.table(
        ["name", "settings"],
        [[name, text] for name, text in {r["cell"].method: r["method"] for r in results}.items()],
        wrap=True,
    )
    return page


def _section(page: Page, rows: Sequence[Row]) -> None:
    clean = ("error", "nll", "ece", "aurc")
    page.text("Test images (AURC: area under the risk-coverage curve):")
    header, lines = _table(rows, {name: QUANTITIES[name] for name in clean})
    counts = [str(row.numbers["nll"].count) for row in rows]
    page.table(
        [header[0], "seeds", *header[1:]],
        [[line[0], count, *line[1:]] for line, count in zip(lines, counts, strict=True)],
    )
    page.figure(
        plot_comparison(_panels(rows, clean[:3])),
        "Error, NLL and ECE on test images: means over seeds ± standard errors.",
    )
    corrupted = [n for n in QUANTITIES if n.startswith("corrupted_") and n in rows[0].numbers]
    if corrupted:
        page.text("Corrupted images, mean over all corruptions:")
        page.table(*_table(rows, {name: QUANTITIES[name] for name in corrupted}))
        for name in ("error", "nll", "ece"):
            page.figure(
                plot_heat(_heat(rows, name)),
                f"Corrupted images: {QUANTITIES[name].title} by corruption, means over seeds. "
                "Darker: larger within the column.",
            )
    foreign = [name for name in rows[0].numbers if name.startswith("foreign/")]
    if foreign:
        page.text("Detection of foreign images by predictive entropy, AUROC by dataset:")
        kinds = {name: Quantity(name.split("/")[1], lower_is_better=False) for name in foreign}
        page.table(*_table(rows, kinds))
    page.text(
        "NLL on test images by the quantity that is averaged over functions, at temperature 1 "
        "(averaging logits gives the same probabilities as averaging log-probabilities):"
    )
    ways = [f"averaging/{way}/nll" for way in ("log_probs", "probs")]
    titles = {name: name.split("/")[1].replace("_", "-") for name in ways}
    page.table(*_table(rows, {name: Quantity(titles[name]) for name in ways}))
    page.text("Cost:")
    page.table(*_table(rows, {name: QUANTITIES[name] for name in COSTS}))
    plain = next((row for row in rows if row.method == "standard"), None)
    if plain is not None:
        heights = {"test NLL": "nll"} | ({"corrupted NLL": "corrupted_nll"} if corrupted else {})
        unit = plain.numbers["seconds"].mean
        panels = {
            title: {
                row.method: (row.numbers["seconds"].mean / unit, row.numbers[name].mean)
                for row in rows
            }
            for title, name in heights.items()
        }
        page.figure(
            plot_cost(panels),
            "NLL against the time of training relative to the plain network, means over seeds.",
        )


def _settings(cells: Sequence[Cell]) -> str:
    """Return the number of seeds and the settings of the cells as text."""
    parts = [
        f"{name.replace('_', ' ')} {'/'.join(f'{value}' for value in values)}"
        for name in (
            "epochs",
            "lr",
            "batch_size",
            "width",
            "train_size",
            "validation_size",
            "test_size",
            "corrupted_size",
            "samples",
        )
        if (values := {getattr(cell, name) for cell in cells} - {None})
    ]
    seeds = len({cell.seed for cell in cells})
    return f"{seeds} seed{'s' * (seeds > 1)}; {', '.join(parts)}."


def _table(
    rows: Sequence[Row], quantities: Mapping[str, Quantity]
) -> tuple[list[str], list[list[str]]]:
    header = ["method", *(quantity.title for quantity in quantities.values())]
    return header, [
        [row.method, *(format_estimate(row.numbers.get(n), q) for n, q in quantities.items())]
        for row in rows
    ]


def format_estimate(found: Estimate | None, quantity: Quantity) -> str:
    """Return an estimate as text: mean, standard error, and a mark if significantly different."""
    if found is None or math.isnan(found.mean):
        return "-"
    text = format(found.mean, quantity.format)
    if not math.isnan(found.error) and quantity != QUANTITIES["parameters"]:
        text += f" ± {format(found.error, quantity.format)}"
    tested = quantity not in (QUANTITIES[name] for name in COSTS)
    if not tested or found.p is None or found.p >= SIGNIFICANCE or found.difference is None:
        return text
    return text + MARKS[(found.difference < 0) == quantity.lower_is_better]


def _panels(rows: Sequence[Row], names: Iterable[str]) -> dict[str, dict[str, tuple[float, float]]]:
    return {
        QUANTITIES[name].title: {
            row.method: (row.numbers[name].mean, row.numbers[name].error) for row in rows
        }
        for name in names
    }


def _heat(rows: Sequence[Row], quantity: str) -> dict[str, dict[str, float]]:
    start, end = "corrupted/", f"/{quantity}"
    return {
        row.method: {
            name.removeprefix(start).removesuffix(end): found.mean
            for name, found in row.numbers.items()
            if name.startswith(start) and name.endswith(end)
        }
        for row in rows
    }


def write_report(results: Sequence[Mapping[str, Any]], out: str | Path, title: str) -> list[Path]:
    """Write report.html, and report.md with its figures, into a folder; return their paths.

    Args:
        results: From `read_results`.
        out: The folder; cells that failed there are listed.
        title: Title of the page.

    Examples:
        >>> import tempfile
        >>> from tacit.studies.bench import measure
        >>> sizes = {"train_size": 64, "test_size": 10, "corrupted_size": 2}
        >>> cell = Cell("digits", "standard", epochs=1, **sizes)
        >>> results = [{**measure(cell), "cell": cell}]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in write_report(results, folder, "A plain network")]
        ['report.html', 'report.md']
    """
    page = make_report(results, title, failed_names(out))
    return [page.write(Path(out) / name) for name in ("report.html", "report.md")]
