"""`tacit reproduce`: run the paper's experiments and check its claims."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table

from tacit._support.console import print_table
from tacit.studies.experiments.experiment import SCALES, Experiment
from tacit.studies.experiments.page import write_page
from tacit.studies.experiments.registry import EXPERIMENTS, find_experiment
from tacit.studies.experiments.reproduction import reproduce
from tacit.studies.folders import check_folder


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = "Run the paper's experiments and check its claims."
    parser = commands.add_parser("reproduce", help=description, description=description)
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="list, all, page (write the page from saved results), or experiments: "
        f"{', '.join(EXPERIMENTS)}",
    )
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="cpu",
        help="smoke: a quick trial; cpu: sized for two cores; paper: as in the paper (cpu)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="results folder (results)"
    )
    parser.set_defaults(command=_reproduce)


def _reproduce(arguments: argparse.Namespace) -> int:
    if arguments.names == ["list"]:
        return _list()
    if find_spec("matplotlib") is None:
        raise ValueError("the figures need matplotlib: pip install 'tacit-torch[plots]'")
    check_folder("--out", arguments.out)
    if arguments.names != ["page"]:
        names = list(EXPERIMENTS) if arguments.names == ["all"] else arguments.names
        for experiment in [find_experiment(name) for name in names]:
            _reproduce_one(experiment, arguments.scale, arguments.out)
    sys.stdout.write(f"page: {write_page(arguments.out)}\n")
    return 0


def _reproduce_one(experiment: Experiment, scale: str, out: Path) -> None:
    """Run an experiment and print its verdicts."""
    start = time.monotonic()
    sys.stdout.write(f"{experiment.name}, about {experiment.minutes[scale]:g} min ...\n")
    sys.stdout.flush()
    saved = reproduce(experiment, scale, out / experiment.name)
    for verdict in experiment.verdicts(saved["results"]):
        subject = f" ({verdict.subject})" if verdict.subject else ""
        line = f"  {verdict.claim}{subject}: {verdict.state}. {verdict.measured}.\n"
        sys.stdout.write(line)
    sys.stdout.write(f"  {time.monotonic() - start:.0f} s\n")
    sys.stdout.flush()


def _list() -> int:
    table = Table("name", "claims", *(f"{scale}, min" for scale in SCALES), "needed beyond smoke")
    for name, experiment in EXPERIMENTS.items():
        minutes = (f"{experiment.minutes[scale]:g}" for scale in SCALES)
        table.add_row(name, "\n".join(experiment.claims), *minutes, experiment.needs)
    print_table(table)
    return 0
