"""One page of all costs, from the saved results of the other benchmarks.

python -m benchmarks.page [--results benchmarks/results]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.step_time import DEFAULT, DROPOUT
from tacit.studies.report import Page

AXES = {
    "rank": "rank of the first and the last layer, MLP 784-512-512-10",
    "width": "width W of MLP 784-W-W-10 with a hidden layer of rank 10",
    "count": "samples, or draws, per step; LeNet-5, first and last layer",
}
Curves = Mapping[str, Mapping[str, Mapping[str, float]]]


def drawn(curves: Curves, label: str) -> Figure:
    """Plot ratios with their intervals on logarithmic axes; the plain network is at 1."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axis = figure.subplots()
    for name, points in curves.items():
        at = [float(number) for number in points]
        means, low, high = (
            [point[key] for point in points.values()]
            for key in ("ratio", "ratio_low", "ratio_high")
        )
        axis.plot(at, means, "o-", label=name, markersize=4)
        axis.fill_between(at, low, high, alpha=0.2)
    axis.axhline(1, color="black", linewidth=1, label="plain network")
    axis.set(xscale="log", yscale="log", xlabel=label, ylabel="time relative to the plain network")
    axis.set_xticks(at, labels=list(points))
    axis.set_yticks([1, 1.5, 2, 3, 5, 10, 20, 50])
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.set_ylim(0.8, None)
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
    return figure


def table(page: Page, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Add a table of ratios to a page."""
    cells = []
    for name, row in rows.items():
        low, high = row.get("ratio_low"), row.get("ratio_high")
        spread = f"{low:.2f} to {high:.2f}" if low is not None else "counted"
        goal = f"{row['goal']:.2f}" if "goal" in row else ""
        cells.append([name, f"{row['ratio']:.2f}", spread, goal])
    page.table(["", "ratio", "95 %", "goal"], cells)


def learned_alike(page: Page, learned: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Add the scores of networks trained with directions in turns and with independent draws."""
    cells = [
        [
            f"{name}, {score}",
            f"{row['turns']:.4g}",
            f"{row['independent']:.4g}",
            f"{row['difference']:+.2g} ± {row['standard_error']:.1g}",
        ]
        for name, scores in learned.items()
        for score, row in scores.items()
    ]
    page.table(["", "turns", "independent", "difference"], cells)


def summary(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return what the default, dropout and samples cost, in three sentences."""
    sentences = []
    for start, end, what in (
        ("training step, ", DEFAULT, "A training step of the default"),
        ("training step, ", DROPOUT, "A training step with dropout in the same layers"),
        ("prediction, ", "", "A prediction"),
    ):
        ratios = [
            f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f}) for "
            f"{name.removeprefix(start).removesuffix(end)}"
            for name, row in rows.items()
            if name.startswith(start) and name.endswith(end)
        ]
        sentences.append(
            f"{what} takes, as a multiple of the plain network's time, {'; '.join(ratios)}."
        )
    return " ".join(sentences)


def page(results: Path) -> Page:
    """Return the page; benchmarks without results are omitted."""
    made = Page("What it costs")
    found: dict[str, Any] = {
        path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))
    }
    if "step_time" in found:
        made.text(summary(found["step_time"]["rows"]))
    where = next(iter(found.values()))["environment"]
    made.text(
        "Times are ratios to the plain network, measured interleaved in one run: medians with a "
        f"95 % bootstrap interval, on {where['cores']} cores of {where['machine']}, "
        f"torch {where['torch']}."
    )
    if "step_time" in found:
        made.heading("A training step")
        table(made, found["step_time"]["rows"])
    if "floors" in found:
        made.heading("LeNet-5, by hand")
        made.text(
            "The minimum for any implementation on top of torch: sample four tensors and train "
            "four more; for several draws, run the first convolution on parts of the batch. "
            "Batch 128."
        )
        table(made, found["floors"]["rows"])
    if "scaling" in found:
        made.heading("How a training step grows")
        for axis, label in AXES.items():
            made.figure(
                drawn(found["scaling"]["curves"][axis], label),
                f"Time of a training step relative to the plain network, against the {label}. "
                "Bands: 95 % intervals.",
            )
    if "directions" in found:
        made.heading("What is learned with directions that take turns")
        made.text(
            "Means over seeds with `tacit.SGD` and with torch's SGD, whose draws are independent: "
            "MLP 784-64-10 on 10,000 images of MNIST, tested on 5,000; trace of the covariance."
        )
        learned_alike(made, found["directions"]["learned"])
    if "inference" in found:
        made.heading("Predictions")
        curves, large = found["inference"]["curves"], found["inference"]["large"]
        made.figure(
            drawn(curves, "samples"),
            "Time of a prediction relative to the plain network, against the number of samples. "
            "Bands: 95 % intervals.",
        )
        table(made, found["inference"]["rows"])
        made.text(
            f"{large['images']:,} corrupted images of MNIST, 32 samples of LeNet-5 with all layers "
            f"random: {large['total_seconds']:.0f} seconds, a peak of "
            f"{large['bytes'] / 2**30:.2f} GiB."
        )
    if "peers" in found:
        made.heading("Other packages")
        used = ", ".join(f"{name} {v}" for name, v in sorted(found["peers"]["versions"].items()))
        made.text(f"MLP 784-512-512-10, batch 128, one sample per step unless stated; {used}.")
        table(made, found["peers"]["rows"])
    made.text("Reproduce with `make bench`, and `make bench-peers` for other packages.")
    return made


def main() -> None:
    """Write the page as HTML, and as Markdown with its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    results: Path = parser.parse_args().results
    for name in ("index.html", "index.md"):
        print(page(results).write(results / name))


if __name__ == "__main__":
    main()
