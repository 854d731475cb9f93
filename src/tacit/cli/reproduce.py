"""`tacit reproduce`: run the paper's experiments and check its claims."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

from rich.table import Table

from tacit._support.console import print_table
from tacit.cli.interruption import sigterm_as_interrupt
from tacit.studies.experiments.experiment import SCALES, Experiment
from tacit.studies.experiments.page import write_page
from tacit.studies.experiments.registry import EXPERIMENTS, find_experiment
from tacit.studies.experiments.reproduction import judge, reproduce
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
    parser.add_argument(
        "--jobs",
        type=int,
        help="number of parallel training runs, of one thread each (one per core)",
    )
    parser.add_argument(
        "--data",
        type=_names,
        help="comma-separated data sets, for in_distribution and corruptions (those of the scale)",
    )
    parser.add_argument(
        "--cells",
        metavar="PATTERN",
        help="train only runs whose file PATTERN matches, '*-M1-0.003-*' or '' for none, and judge "
        "those that are finished (all)",
    )
    parser.add_argument(
        "--bench",
        type=Path,
        metavar="FOLDER",
        help="folder of tacit bench with the training runs of in_distribution and corruptions "
        "(bench in the results folder)",
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
        given = {"jobs": arguments.jobs} if arguments.jobs is not None else {}
        found = [find_experiment(name) for name in names]
        experiments = [
            (
                each,
                given
                | _data(each, arguments.data)
                | _cells(each, arguments.cells)
                | _bench(each, arguments.bench),
            )
            for each in found
        ]
        with sigterm_as_interrupt():
            for experiment, changes in experiments:
                _reproduce_one(experiment, arguments.scale, arguments.out, changes)
    sys.stdout.write(f"page: {write_page(arguments.out)}\n")
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _data(experiment: Experiment, data: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the argument of an experiment that compares methods on several data sets."""
    several = isinstance(experiment.scales["smoke"].get("data"), tuple)
    if data is not None and not several:
        raise ValueError(f"--data: {experiment.name} has one data set; leave the option out.")
    return {} if data is None else {"data": data}


def _cells(experiment: Experiment, cells: str | None) -> dict[str, Any]:
    """Return the argument of an experiment that can be judged from some of its trainings."""
    if cells is not None and "cells" not in signature(experiment.compute).parameters:
        raise ValueError(
            f"--cells: {experiment.name} is judged from all its training runs; leave the option "
            "out."
        )
    return {} if cells is None else {"cells": cells}


def _bench(experiment: Experiment, bench: Path | None) -> dict[str, Any]:
    """Return the argument of an experiment whose training runs are those of `tacit bench`."""
    if bench is not None and "bench" not in signature(experiment.compute).parameters:
        raise ValueError(
            f"--bench: {experiment.name} has training runs of its own; leave the option out."
        )
    return {} if bench is None else {"bench": bench.as_posix()}


def _reproduce_one(experiment: Experiment, scale: str, out: Path, changes: dict[str, Any]) -> None:
    """Run an experiment and print its verdicts."""
    start = time.monotonic()
    sys.stdout.write(f"{experiment.name}, about {experiment.minutes[scale]:g} min ...\n")
    sys.stdout.flush()
    reproduce(experiment, scale, out / experiment.name, **changes)
    for verdict in judge(experiment, out / experiment.name):
        subject = f" ({verdict.subject})" if verdict.subject else ""
        line = f"  {verdict.claim}{subject}: {verdict.reason}. {verdict.measured}.\n"
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
