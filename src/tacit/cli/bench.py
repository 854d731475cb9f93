"""`tacit bench`: run a comparison of methods and report it."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tacit.studies.bench import (
    METHODS,
    PARAMETRIZATIONS,
    PROBLEMS,
    Cell,
    make_grid,
    read_results,
    run_cells,
    write_report,
)
from tacit.studies.bench.results import is_finished

NUMBERS = {
    "epochs": (int, 20, "passes over the training data"),
    "lr": (float, None, "learning rate (the problem's default for a plain network)"),
    "batch-size": (int, 128, "examples per step"),
    "width": (int, None, "width, for networks with a width argument"),
    "train-size": (int, None, "train on the first N images (all)"),
    "validation-size": (int, None, "fit temperatures on the first N validation images (all)"),
    "test-size": (int, None, "test on the first N images (all)"),
    "corrupted-size": (
        int, None, "images per corruption and out-of-distribution set (as many as test images)",
    ),
    "samples": (int, 32, "sampled functions per prediction"),
}  # fmt: skip


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = "Compare methods: run a grid of trainings and write a report."
    parser = commands.add_parser("bench", help=description, description=description)
    actions = parser.add_subparsers(metavar="run|report", required=True)
    runs = actions.add_parser(
        "run",
        help="train and test every method from every seed",
        description="Train and test every method from every seed. Each result is written to a file "
        "in DIR as soon as it is known: the same command resumes an interrupted run. The exit code "
        "is 3 if a training fails; the others continue.",
    )
    runs.add_argument(
        "--data",
        type=_names,
        required=True,
        help=f"comma-separated: {', '.join(PROBLEMS)}, or module:name of your own",
    )
    runs.add_argument(
        "--methods",
        type=_names,
        default=["all"],
        help=f"all, or comma-separated: {', '.join(METHODS)}, or module:name of your own (all)",
    )
    runs.add_argument(
        "--parametrization",
        type=_names,
        default=list(PARAMETRIZATIONS),
        help="sp, mup or both (sp,mup)",
    )
    runs.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    for name, (kind, default, text) in NUMBERS.items():
        known = f" ({default})" if default is not None else ""
        runs.add_argument(f"--{name}", type=kind, default=default, help=text + known)
    runs.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of results")
    runs.add_argument(
        "--jobs", type=int, default=-1, help="number of parallel trainings (one per core)"
    )
    runs.add_argument(
        "--backend",
        default="loky",
        help="joblib backend: loky (local processes), dask, ray, ... (loky)",
    )
    runs.add_argument(
        "--address", help="address of the cluster's scheduler, for instance tcp://host:8786"
    )
    runs.set_defaults(run=_run)
    reports = actions.add_parser(
        "report",
        help="write report.html and report.md from results",
        description="Write report.html, and report.md with its figures, into DIR.",
    )
    reports.add_argument("out", type=Path, metavar="DIR", help="folder of results")
    reports.add_argument("--title", default="Methods compared", help="title of the page")
    reports.set_defaults(run=_report)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _run(arguments: argparse.Namespace) -> int:
    names = [name.replace("-", "_") for name in NUMBERS]
    settings = {name: getattr(arguments, name) for name in names}
    methods = list(METHODS) if arguments.methods == ["all"] else arguments.methods
    cells = make_grid(
        arguments.data, methods, arguments.parametrization, arguments.seeds, **settings
    )
    missing = sum(not is_finished(cell, arguments.out) for cell in cells)
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

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the workers too
    failed = run_cells(
        cells, arguments.out, jobs=arguments.jobs, backend=arguments.backend,
        address=arguments.address, done=done,
    )  # fmt: skip
    signal.signal(signal.SIGTERM, before)
    return 3 if failed else 0


def _report(arguments: argparse.Namespace) -> int:
    if find_spec("matplotlib") is None:
        raise ValueError("the figures need matplotlib: pip install 'tacit-torch[plots]'")
    for path in write_report(read_results(arguments.out), arguments.out, arguments.title):
        sys.stdout.write(f"{path}\n")
    return 0
