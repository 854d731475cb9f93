"""Examples of a file or folder, read in chunks as a trained model takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.data.decoding import decode_files, default_workers, listed
from tacit.data.image_files import files_of, images_in, rows_of
from tacit.data.table_files import TableFile, open_table
from tacit.data.text_columns import values_of
from tacit.integrations.files.inputs import ImageInputs, TableInputs
from tacit.integrations.files.model import FileModel
from tacit.integrations.files.training_table import Note, label_of

IMAGES = 256  # decoded at a time


@dataclass(frozen=True)
class Examples:
    """Some examples.

    Attributes:
        names: Line or file of each.
        inputs: Encoded rows, (B, features), or `tacit.data.Images`.
        reasons: Why each is foreign, apart from its uncertainty.
        targets: Numbers or indices of classes, (B,); None for new examples.
    """

    names: Sequence[str]
    inputs: Any
    reasons: Sequence[list[str]]
    targets: Tensor | None = None


def read_examples(
    model: FileModel,
    path: str | Path,
    *,
    labelled: bool = False,
    skip_broken: bool = False,
    note: Note = lambda text: None,
) -> Iterator[Examples]:
    """Yield the examples of a table, or of a folder or CSV of images, in chunks.

    Args:
        model: The model that they are for.
        path: File or folder.
        labelled: Whether to read targets as well.
        skip_broken: Whether to leave out image files that can't be read.
        note: Receives remarks.

    Raises:
        FileNotFoundError: If there is nothing at the path.
        ValueError: If the examples don't fit the model; the message names line and column, or file.
    """
    path = Path(path)
    if isinstance(model.inputs, ImageInputs):
        files = _labelled_images(model, path) if labelled else _new_images(path)
        return _images(model.inputs, files, skip_broken, note)
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder; the model predicts {model.target!r} from the rows of a table. "
            "Pass a CSV file."
        )
    return _table(model, model.inputs, open_table(path), labelled)


def _table(
    model: FileModel, inputs: TableInputs, table: TableFile, labelled: bool
) -> Iterator[Examples]:
    needed = [column.name for column in inputs.encoder.columns]
    missing = [name for name in needed if name not in table.names]
    missing += [model.target] if labelled and model.target not in table.names else []
    if missing:
        raise ValueError(
            f"{table.path} lacks columns that the model needs: {listed(missing)}. It has "
            f"{', '.join(table.names)}."
        )
    comma = table.separator == ";"
    for chunk in table.chunks():
        columns = inputs.read(chunk, comma=comma)
        targets = None
        if labelled:
            targets = _targets(model, chunk.columns[model.target], chunk.lines, comma)
        yield Examples(
            [str(line) for line in chunk.lines],
            inputs.encoded(columns),
            inputs.foreign(columns, chunk.columns),
            targets,
        )


def _targets(model: FileModel, cells: Sequence[str], lines: Sequence[int], comma: bool) -> Tensor:
    kind = "category" if model.classes else "number"
    values = values_of(cells, kind, model.target, lines, comma=comma)  # type: ignore[arg-type]
    gap = values == None if model.classes else np.isnan(values)  # noqa: E711
    if gap.any():
        gaps = [str(lines[int(i)]) for i in np.flatnonzero(gap)]
        more = f" and {len(gaps) - 10} more" if len(gaps) > 10 else ""
        raise ValueError(
            f"the target {model.target!r} has no value in line {', '.join(gaps[:10])}{more}. "
            "Remove these lines."
        )
    if not model.classes:
        return torch.from_numpy(values.astype(np.float32))
    known = {name: i for i, name in enumerate(model.classes)}
    found = [known.get(label_of(text), -1) for text in values]
    if -1 in found:
        row = found.index(-1)
        raise ValueError(
            f"line {lines[row]}: {values[row]!r} is not a class of the model, which knows "
            f"{listed(model.classes)}."
        )
    return torch.tensor(found)


@dataclass(frozen=True)
class _Files:
    names: Sequence[str]
    paths: Sequence[Path]
    labels: Tensor | None = None


def _labelled_images(model: FileModel, path: Path) -> _Files:
    """Return the test images of a folder or CSV; all, if it has no splits."""
    files = files_of(path)
    test = [file for file in files if file.part == "test"]
    if not test and any(file.part not in (None, "train") for file in files):
        raise ValueError(f"{path} has splits but no test images; pass a folder of test images.")
    files = test or files
    unknown = sorted({file.label for file in files} - {*model.classes})
    if unknown:
        raise ValueError(
            f"{path} has classes that the model doesn't know: {listed(unknown)}. It knows "
            f"{listed(model.classes)}."
        )
    labels = torch.tensor([model.classes.index(file.label) for file in files])
    return _Files([file.name for file in files], [file.path for file in files], labels)


def _new_images(path: Path) -> _Files:
    """Return the images of a folder, at any depth, or those listed in a CSV, or a single one."""
    if path.is_dir():
        paths = list(images_in(path))
        names = [each.relative_to(path).as_posix() for each in paths]
    elif path.suffix.lower() == ".csv":
        names = [row["file"] for _, row in rows_of(path, "file")]
        paths = [path.parent / name for name in names]
    elif path.exists():
        names, paths = [path.name], [path]
    else:
        raise FileNotFoundError(f"there is no folder or file {path}.")
    if not paths:
        raise ValueError(f"{path} has no images (.jpg, .png, ...).")
    return _Files(names, paths)


def _images(
    inputs: ImageInputs, files: _Files, skip_broken: bool, note: Note
) -> Iterator[Examples]:
    for start in range(0, len(files.paths), IMAGES):
        rows = range(start, min(start + IMAGES, len(files.paths)))
        shape = (len(rows), inputs.channels, inputs.height, inputs.width)
        pixels = np.zeros(shape, dtype=np.uint8)
        failed = decode_files([files.paths[row] for row in rows], pixels, default_workers())
        broken = listed(f"{files.names[start + row]} ({why})" for row, why in failed.items())
        if failed and not skip_broken:
            raise ValueError(
                f"these files can't be read: {broken}. Repair or remove them, or pass "
                "--skip-broken."
            )
        if failed:
            note(f"skipped, since they can't be read: {broken}")
        intact = [row for row in range(len(rows)) if row not in failed]
        if intact:
            yield Examples(
                [files.names[start + row] for row in intact],
                inputs.normalised(pixels[intact]),
                [[] for _ in intact],
                None if files.labels is None else files.labels[start:][intact],
            )
