"""Results of benchmarks: saved with their environment, and printed as a table."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table


def environment() -> dict[str, Any]:
    """Return versions and hardware that affect the results."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def save(path: Path, **results: Any) -> None:
    """Write results as JSON, with the environment and the arguments of the run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = {"arguments": sys.argv[1:], "environment": environment(), **results}
    path.write_text(json.dumps(saved, indent=2) + "\n")


def show(rows: Mapping[str, Mapping[str, float]], title: str = "Cost over plain") -> None:
    """Print a table of ratios from `tacit.studies.timing.ratio`, or of bytes, with their goals."""
    table = Table("what", "plain", "tacit", "ratio", "95 %", "goal", title=title)
    for name, row in rows.items():
        if "seconds" in row:
            plain, ours = (f"{1e3 * row[key]:.2f} ms" for key in ("anchor_seconds", "seconds"))
            spread = f"{row['ratio_low']:.3f} to {row['ratio_high']:.3f}"
        else:
            plain, ours = (f"{row[key] / 2**20:.1f} MiB" for key in ("plain", "tacit"))
            spread = "counted"
        goal = f"{row['goal']:.2f}" if "goal" in row else ""
        table.add_row(name, plain, ours, f"{row['ratio']:.3f}", spread, goal)
    Console().print(table)
