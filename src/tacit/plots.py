"""Figures; they need matplotlib (`pip install 'tacit-torch[plots]'`)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot_coordinates(changes: Sequence[dict[str, Any]], path: str | Path, title: str = "") -> None:
    """Draw how far features move against width: a column per layer, mean above, deviation below.

    Args:
        changes: Rows of a coordinate check: layer, width, seed, step, mean, std, start. A None
            stands for a run that diverged; its point is left out.
        path: File to write.
        title: Title of the figure.
    """
    from matplotlib.figure import Figure

    layers = list(dict.fromkeys(row["layer"] for row in changes))
    steps, widths = (sorted({row[key] for row in changes}) for key in ("step", "width"))
    quantities = ["mean", "std"] if any(row["std"] for row in changes) else ["mean"]
    figure = Figure(figsize=(3 * len(layers), 2.6 * len(quantities)), layout="constrained")
    axes = figure.subplots(len(quantities), len(layers), squeeze=False, sharex=True)
    for i, quantity in enumerate(quantities):
        for layer, axis in zip(layers, axes[i], strict=True):
            rows = [row for row in changes if row["layer"] == layer]
            for step in steps:
                shade = 0.25 + 0.75 * step / steps[-1]
                at = [row for row in rows if row["step"] == step]
                _line(axis, at, quantity, color="black", alpha=shade, label=f"after {step}")
            if quantity == "mean":
                _line(axis, rows, "start", color="tab:blue", label="at the start")
            axis.set(xscale="log", yscale="log", title=f"layer {layer}" if i == 0 else "")
            axis.set_xticks(widths, labels=map(str, widths))
            axis.minorticks_off()
        axes[i][0].set_ylabel(f"change of the features' {quantity}")
    for axis in axes[-1]:
        axis.set_xlabel("width")
    axes[0][-1].legend(fontsize="x-small")
    figure.suptitle(title)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _line(axis: Any, rows: Sequence[dict[str, Any]], quantity: str, **style: Any) -> None:
    widths = sorted({row["width"] for row in rows})
    means = []
    for width in widths:
        values = [row[quantity] for row in rows if row["width"] == width]
        means.append(math.nan if None in values else statistics.fmean(values))
    axis.plot(widths, means, marker="o", markersize=3, **style)
