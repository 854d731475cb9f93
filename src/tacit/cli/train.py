"""`tacit train`: a model for a table or for images, in one file."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from tacit.data.table_files import open_table
from tacit.integrations.files import FileModel, Settings, train_images, train_table
from tacit.integrations.files.learning import DEFAULT
from tacit.methods.by_name import METHODS
from tacit.studies.folders import check_folder

FOR_TABLES = ("target", "task", "ignore", "categories", "hidden")
FOR_IMAGES = ("size", "flip", "skip_broken")


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = "Train a model on a table (CSV, Parquet) or on a folder of images."
    parser = commands.add_parser(
        "train",
        help=description,
        description=f"{description} A run that was killed resumes if the same command is given.",
    )
    parser.add_argument(
        "data",
        type=Path,
        help="table with named columns, folder with a folder for each class of images, or CSV of "
        "images with the columns file and label",
    )
    parser.add_argument("--target", metavar="COLUMN", help="column of the table to predict")
    parser.add_argument(
        "--task", choices=("classification", "regression"), help="by default, by the target"
    )
    parser.add_argument(
        "--ignore", type=_names, metavar="COLUMN,...", help="columns of the table to leave out"
    )
    parser.add_argument(
        "--categories", type=_names, metavar="COLUMN,...",
        help="columns of numbers that are codes of categories",
    )  # fmt: skip
    parser.add_argument(
        "--hidden", type=_widths, help="widths of the hidden layers, for tables (64,64)"
    )
    parser.add_argument("--size", type=int, help="height and width of images in pixels (64)")
    parser.add_argument(
        "--flip", action="store_true", help="mirror images have the same class: train on them too"
    )
    parser.add_argument(
        "--skip-broken", action="store_true", help="leave out images that can't be read"
    )
    parser.add_argument(
        "--method", choices=tuple(METHODS), default=DEFAULT, metavar="NAME",
        help=f"method, {DEFAULT} by default: {', '.join(METHODS)}",
    )  # fmt: skip
    parser.add_argument(
        "--epochs", type=int, help="passes over the data (by default held-out examples decide)"
    )
    parser.add_argument("--lr", type=float, help="learning rate (0.03)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (0)")
    parser.add_argument(
        "--out", type=Path, default=Path("model.safetensors"),
        help="file of the model (model.safetensors)",
    )  # fmt: skip
    parser.set_defaults(command=_train)


def _train(arguments: argparse.Namespace) -> int:
    out: Path = arguments.out
    if out.is_dir():
        raise ValueError(f"--out: expected a file, received the folder {out}.")
    check_folder("--out", out.parent)
    images = _are_images(arguments)
    _refuse(arguments, FOR_TABLES if images else FOR_IMAGES, "images" if images else "tables")
    folder = out.with_name(f"{out.name}.checkpoints")
    settings = Settings(
        arguments.epochs, arguments.lr, arguments.seed, folder, folder=out.parent,
        method=arguments.method,
    )  # fmt: skip
    if out.exists():
        _print(f"{out} exists; this model replaces it when training has ended")
    try:
        model = (_train_images if images else _train_table)(arguments, settings)
    except ValueError as error:
        if f"{folder} belongs to another run" in str(error):
            raise ValueError(
                f"{folder} has checkpoints of another command with the same --out. Repeat that "
                "command to resume it, remove the folder, or choose another --out."
            ) from error
        raise
    model.save(out)
    shutil.rmtree(folder, ignore_errors=True)
    _print(f"model: {out}")
    return 0


def _train_table(arguments: argparse.Namespace, settings: Settings) -> FileModel:
    return train_table(
        arguments.data, arguments.target, task=arguments.task, ignore=arguments.ignore or (),
        categories=arguments.categories or (), hidden=arguments.hidden or (64, 64),
        settings=settings, note=_print,
    )  # fmt: skip


def _train_images(arguments: argparse.Namespace, settings: Settings) -> FileModel:
    return train_images(
        arguments.data, size=64 if arguments.size is None else arguments.size,
        flip=arguments.flip, skip_broken=arguments.skip_broken, settings=settings, note=_print,
    )  # fmt: skip


def _are_images(arguments: argparse.Namespace) -> bool:
    """Return whether to train on images: a folder, or a CSV of files without a target."""
    if arguments.data.is_dir():
        return True
    if arguments.target is not None:
        return False
    names = open_table(arguments.data).names
    if {"file", "label"} <= {name.lower() for name in names}:
        return True
    raise ValueError(
        f"--target: name the column of {arguments.data} to predict, one of {', '.join(names)}."
    )


def _refuse(arguments: argparse.Namespace, options: tuple[str, ...], what: str) -> None:
    given = [name for name in options if getattr(arguments, name)]
    if given:
        option = given[0].replace("_", "-")
        raise ValueError(f"--{option}: does not apply to {what}. Leave it out.")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _widths(text: str) -> list[int]:
    try:
        return [int(width) for width in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected widths separated by commas, such as 64,64; received {text!r}"
        ) from None


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
