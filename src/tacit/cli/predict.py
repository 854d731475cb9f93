"""`tacit predict`: predictions of a trained model, as CSV."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tacit.integrations.files import FileModel, predict_file
from tacit.studies.folders import check_folder


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = "Predict for a table or images with a model from `tacit train`."
    parser = commands.add_parser(
        "predict",
        help=description,
        description=f"{description} Writes a CSV: label, its probability, a set of classes that "
        "contains the true one with probability --level, entropy; for numbers mean, standard "
        "deviation and an interval; and in the column foreign why an input is unlike the training "
        "data.",
    )
    add_model_arguments(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("predictions.csv"), help="file to write (predictions.csv)"
    )
    parser.set_defaults(command=_predict)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `tacit predict` and `tacit evaluate` share."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="file from `tacit train`")
    parser.add_argument("data", type=Path, help="table, folder of images, or CSV of images")
    parser.add_argument(
        "--level", type=float, default=0.9, help="probability of sets and intervals (0.9)"
    )
    parser.add_argument(
        "--skip-broken", action="store_true", help="leave out images that can't be read"
    )


def warn(text: str) -> None:
    """Print a remark to stderr."""
    sys.stderr.write(f"tacit: {text}\n")


def _predict(arguments: argparse.Namespace) -> int:
    out: Path = arguments.out
    if out.is_dir():
        raise ValueError(f"--out: expected a file, received the folder {out}.")
    check_folder("--out", out.parent)
    model = FileModel.load(arguments.model)
    done = predict_file(
        model, arguments.data, out, level=arguments.level, skip_broken=arguments.skip_broken,
        note=warn,
    )  # fmt: skip
    sys.stdout.write(f"predictions: {done.count}, of which foreign: {done.foreign}\n")
    sys.stdout.write(f"{model.describe_regions(arguments.level)}\n")
    sys.stdout.write(f"file: {out}\n")
    return 0
