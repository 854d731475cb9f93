"""`tacit bench`: compare methods and report the results."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tacit.cli.interruption import sigterm_as_interrupt
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
from tacit.studies.folders import check_folder

SETTINGS = {
    "epochs": (int, 20, "passes over the training data"),
    "lr": (float, None, "learning rate (the problem's default for a plain network)"),
    "batch-size": (int, 128, "examples per step"),
    "width": (int, None, "width, for networks with a width argument"),
    "train-size": (int, None, "train on the first N examples (all)"),
    "validation-size": (int, None, "fit temperatures on the first N validation examples (all)"),
    "test-size": (int, None, "test on the first N examples (all)"),
    "corrupted-size": (
        int, None, "examples per corruption and foreign set (as many as for testing)",
    ),
    "samples": (int, 32, "sampled functions per prediction"),
    "average": (float, 0.0, "last part of training over which parameters are averaged"),
    "optimizer": (str, "sgd", "name of the optimizer"),
}  # fmt: skip


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = "Compare methods over several seeds and write a report."
    parser = commands.add_parser("bench", help=description, description=description)
    actions = parser.add_subparsers(metavar="run|report", required=True)
    _add_comparison(actions)
    _add_report(actions)


def _add_comparison(actions: Any) -> None:
    comparison = actions.add_parser(
        "run",
        help="train and test every method with every seed",
        description="Train and test every method with every seed. Each result is written to a file "
        "in DIR when its training run ends, and a run in progress is saved after each epoch, so "
        "the same command resumes an interrupted comparison. "
        "A failed training run does not stop the others; the exit code is then 3.",
    )
    comparison.add_argument(
        "--data",
        type=_names,
        required=True,
        help=f"comma-separated: {', '.join(PROBLEMS)}, or your own as module:name",
    )
    comparison.add_argument(
        "--methods",
        type=_names,
        default=["all"],
        help=f"all, or comma-separated: {', '.join(METHODS)}, or your own as module:name (all)",
    )
    comparison.add_argument(
        "--parametrization",
        type=_names,
        default=list(PARAMETRIZATIONS),
        help="sp, mup or both (sp,mup)",
    )
    comparison.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    for name, (kind, default, text) in SETTINGS.items():
        known = f" ({default})" if default is not None else ""
        comparison.add_argument(f"--{name}", type=kind, default=default, help=text + known)
    comparison.add_argument("--out", type=Path, required=True, metavar="DIR", help="results folder")
    comparison.add_argument(
        "--jobs", type=int, default=-1, help="number of parallel training runs (one per core)"
    )
    comparison.add_argument(
        "--backend",
        default="loky",
        help="joblib backend: loky (local processes), dask, ray, ... (loky)",
    )
    comparison.add_argument(
        "--address", help="address of the cluster scheduler, e.g. tcp://host:8786"
    )
    comparison.set_defaults(command=_train_grid)


def _add_report(actions: Any) -> None:
    report = actions.add_parser(
        "report",
        help="write report.html and report.md from saved results",
        description="Write report.html, and report.md with its figures, to DIR.",
    )
    report.add_argument("out", type=Path, metavar="DIR", help="results folder")
    report.add_argument("--title", default="Methods compared", help="title of the report")
    report.set_defaults(command=_report)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _train_grid(arguments: argparse.Namespace) -> int:
    names = [name.replace("-", "_") for name in SETTINGS]
    settings = {name: getattr(arguments, name) for name in names}
    methods = list(METHODS) if arguments.methods == ["all"] else arguments.methods
    cells = make_grid(
        arguments.data, methods, arguments.parametrization, arguments.seeds, **settings
    )
    check_folder("--out", arguments.out)
    missing = sum(not is_finished(cell, arguments.out) for cell in cells)
    sys.stdout.write(f"{len(cells)} training runs, {len(cells) - missing} already finished\n")
    start, count = time.monotonic(), 0

    def done(cell: Cell, problem: str | None) -> None:
        nonlocal count
        count += 1
        seconds = (time.monotonic() - start) / count * (missing - count)
        left = f"{seconds / 60:.0f} min" if seconds > 120 else f"{seconds:.0f} s"
        state = "failed" if problem else "done"
        sys.stdout.write(f"[{count}/{missing}] {cell.name} {state}, about {left} left\n")
        if problem:
            sys.stderr.write(problem)
        sys.stdout.flush()

    with sigterm_as_interrupt():
        failed = run_cells(
            cells, arguments.out, jobs=arguments.jobs, backend=arguments.backend,
            address=arguments.address, done=done,
        )  # fmt: skip
    return 3 if failed else 0


def _report(arguments: argparse.Namespace) -> int:
    if find_spec("matplotlib") is None:
        raise ValueError("the figures need matplotlib: pip install 'tacit-torch[plots]'")
    for path in write_report(read_results(arguments.out), arguments.out, arguments.title):
        sys.stdout.write(f"{path}\n")
    return 0
