"""`tacit evaluate`: metrics of a trained model on examples with known targets."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table

from tacit._support.console import print_table
from tacit.cli.predict import add_model_arguments, warn
from tacit.integrations.files import FileModel, evaluate_file
from tacit.studies.evaluation_page import write_page
from tacit.studies.folders import check_folder


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = "Evaluate a model from `tacit train` on examples with known targets."
    parser = commands.add_parser("evaluate", help=description, description=description)
    add_model_arguments(parser)
    parser.add_argument("--report", type=Path, metavar="PAGE.html", help="page to write")
    parser.set_defaults(command=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> int:
    report: Path | None = arguments.report
    if report is not None:
        if find_spec("matplotlib") is None:
            raise ValueError("the figures need matplotlib: pip install 'tacit-torch[plots]'")
        if report.is_dir():
            raise ValueError(f"--report: expected a file, received the folder {report}.")
        check_folder("--report", report.parent)
    model = FileModel.load(arguments.model)
    found = evaluate_file(
        model, arguments.data, level=arguments.level, skip_broken=arguments.skip_broken, note=warn
    )
    table = Table("metric", "value", title=f"{arguments.data}, {len(found.targets)} examples")
    for name, value in found.metrics.items():
        table.add_row(name, f"{value:.4g}")
    print_table(table)
    if "coverage_90" in found.metrics:
        own = f"interval_coverage_{100 * arguments.level:g}"
        sys.stdout.write(
            "coverage_90: of the intervals of the predictive distribution, which have probability "
            f"0.9\n{own}: of the intervals that tacit predict writes\n"
        )
    sys.stdout.write(f"{model.describe_regions(arguments.level)}\n")
    if report is not None:
        sys.stdout.write(f"page: {write_page(report, model, found, str(arguments.data))}\n")
    return 0
