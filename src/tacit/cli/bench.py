"""`tacit bench`: methods compared on data, with their uncertainty, cost and a page about it."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tacit.bench import METHODS, PARAMETRIZATIONS, PROBLEMS, Cell, grid, results, run, write
from tacit.bench.run import finished

NUMBERS = {
    "epochs": (int, 20, "passes over the training data"),
    "lr": (float, None, "learning rate; one that serves a plain network if left out"),
    "batch-size": (int, 128, "examples in a step"),
    "width": (int, None, "of networks that have one"),
    "train-size": (int, None, "train on the first N images only"),
    "validation-size": (int, None, "set temperatures by the first N images only"),
    "test-size": (int, None, "test on the first N images only"),
    "corrupted-size": (int, None, "use N images of each corruption and foreign set only"),
    "samples": (int, 32, "functions in a prediction"),
}


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = "Compare methods: run a grid of trainings, and write a page about it."
    parser = commands.add_parser("bench", help=description, description=description)
    actions = parser.add_subparsers(metavar="run|report", required=True)
    runs = actions.add_parser(
        "run",
        help="train and test every method from every seed",
        description="Train and test every method from every seed. Each result is a file in DIR, "
        "written when it is there: the same command again goes on where it stopped. The exit code "
        "is 3 if a training fails; the others go on.",
    )
    runs.add_argument(
        "--data",
        type=_names,
        required=True,
        help=f"some of {', '.join(PROBLEMS)}, or module:name of yours",
    )
    runs.add_argument(
        "--methods",
        type=_names,
        default=["all"],
        help=f"all, or some of {', '.join(METHODS)}",
    )
    runs.add_argument(
        "--parametrization", type=_names, default=list(PARAMETRIZATIONS), help="sp,mup"
    )
    runs.add_argument("--seeds", type=int, default=5, help="how many (5)")
    for name, (kind, default, text) in NUMBERS.items():
        known = f" ({default})" if default is not None else ""
        runs.add_argument(f"--{name}", type=kind, default=default, help=text + known)
    runs.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of results")
    runs.add_argument(
        "--jobs", type=int, default=-1, help="trainings at a time (one for each core)"
    )
    runs.add_argument(
        "--backend", default="loky", help="joblib's: loky (processes here), dask, ray, ... (loky)"
    )
    runs.add_argument("--address", help="of a cluster's scheduler, for instance tcp://host:8786")
    runs.set_defaults(run=_run)
    reports = actions.add_parser(
        "report",
        help="write report.html and report.md from results",
        description="Write report.html, and report.md with its pictures, into DIR.",
    )
    reports.add_argument("out", type=Path, metavar="DIR", help="folder of results")
    reports.add_argument("--title", default="Methods compared", help="of the page")
    reports.set_defaults(run=_report)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _run(arguments: argparse.Namespace) -> int:
    names = [name.replace("-", "_") for name in NUMBERS]
    settings = {name: getattr(arguments, name) for name in names}
    methods = list(METHODS) if arguments.methods == ["all"] else arguments.methods
    cells = grid(arguments.data, methods, arguments.parametrization, arguments.seeds, **settings)
    missing = sum(not finished(cell, arguments.out) for cell in cells)
    sys.stdout.write(f"{len(cells)} trainings, {len(cells) - missing} done before\n")
    start, count = time.monotonic(), 0

    def done(cell: Cell, problem: str | None) -> None:
        nonlocal count
        count += 1
        passed = time.monotonic() - start
        left = passed / count * (missing - count)
        ahead = f"{left / 60:.0f} min" if left > 120 else f"{left:.0f} s"
        state = "failed" if problem else "done"
        sys.stdout.write(f"[{count}/{missing}] {cell.name} {state}, about {ahead} left\n")
        if problem:
            sys.stderr.write(problem)
        sys.stdout.flush()

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that workers end too
    failed = run(
        cells, arguments.out, jobs=arguments.jobs, backend=arguments.backend,
        address=arguments.address, done=done,
    )  # fmt: skip
    signal.signal(signal.SIGTERM, before)
    return 3 if failed else 0


def _report(arguments: argparse.Namespace) -> int:
    if find_spec("matplotlib") is None:
        raise ValueError("the figures need matplotlib: pip install 'tacit-torch[plots]'")
    for path in write(results(arguments.out), arguments.out, arguments.title):
        sys.stdout.write(f"{path}\n")
    return 0
