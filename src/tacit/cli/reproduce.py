"""`tacit reproduce`: the paper's experiments, and whether its claims hold."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table

from tacit._console import print_table
from tacit.experiments import page
from tacit.experiments.runner import perform

SCALES = ("smoke", "cpu", "paper")


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = "Run the paper's experiments, and see whether its claims hold."
    parser = commands.add_parser("reproduce", help=description, description=description)
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help=f"list, all, page (from what is there), or some of {', '.join(page.EXPERIMENTS)}",
    )
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="cpu",
        help="smoke: does it run? cpu: for two cores; paper: as large as in the paper (cpu)",
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (results)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.names == ["list"]:
        return _list()
    if find_spec("matplotlib") is None:
        raise ValueError("the figures need matplotlib: pip install 'tacit-torch[plots]'")
    if arguments.names == ["page"]:
        sys.stdout.write(f"the page: {page.write(arguments.out)}\n")
        return 0
    names = list(page.EXPERIMENTS) if arguments.names == ["all"] else arguments.names
    modules = {name: page.experiment(name) for name in names}
    for name, module in modules.items():
        start = time.monotonic()
        sys.stdout.write(f"{name}, about {module.MINUTES[arguments.scale]:g} min ...\n")
        sys.stdout.flush()
        saved = perform(module, arguments.scale, arguments.out / name)
        for verdict in module.verdicts(saved["results"]):
            subject = f" ({verdict.subject})" if verdict.subject else ""
            line = f"  {verdict.claim}{subject}: {verdict.state}. {verdict.measured}.\n"
            sys.stdout.write(line)
        sys.stdout.write(f"  {time.monotonic() - start:.0f} s\n")
        sys.stdout.flush()
    sys.stdout.write(f"the page: {page.write(arguments.out)}\n")
    return 0


def _list() -> int:
    table = Table("name", "claims", *(f"{scale}, min" for scale in SCALES), "needs, beyond smoke")
    for name in page.EXPERIMENTS:
        module = page.experiment(name)
        minutes = (f"{module.MINUTES[scale]:g}" for scale in SCALES)
        table.add_row(name, "\n".join(module.CLAIMS), *minutes, module.NEEDS)
    print_table(table)
    return 0
