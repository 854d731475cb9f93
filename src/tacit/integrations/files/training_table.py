"""Reading a table for training: which columns to use, what they hold, and the task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.data.table_columns import Kind
from tacit.data.table_files import TableFile, open_table
from tacit.data.text_columns import Survey, values_of
from tacit.integrations.files.stored_rows import StoredColumn

MOST_CLASSES = 20  # distinct whole numbers of a target that are still classes by default

Task: TypeAlias = Literal["classification", "regression"]
Note: TypeAlias = Callable[[str], Any]
"""Receives each choice and remark, in a sentence."""


@dataclass(frozen=True)
class TrainingTable:
    """A table that was read.

    Attributes:
        columns: The columns used, by name, on disk.
        targets: Targets: numbers, or indices of classes, (B,).
        classes: Names of the classes; none for regression.
    """

    columns: dict[str, StoredColumn]
    targets: NDArray[Any]
    classes: tuple[str, ...]


def read_training_table(
    path: str | Path,
    target: str,
    *,
    task: Task | None = None,
    ignore: Sequence[str] = (),
    categories: Sequence[str] = (),
    folder: Path | None = None,
    note: Note = lambda text: None,
) -> TrainingTable:
    """Read a table, in two passes: one decides what columns hold, the other reads them.

    Args:
        path: CSV or Parquet file.
        target: Name of the target's column.
        task: Classification or regression; decided by the target if None.
        ignore: Columns to leave out.
        categories: Columns of numbers that are codes of categories.
        folder: Folder of a temporary file with the columns; by default that of the system.
        note: Receives what is decided.

    Raises:
        ValueError: If a column is unknown, or holds what can't be read; the message names the line.
    """
    table = open_table(path)
    for name in (target, *ignore, *categories):
        _check_column(table, name)
    if target in ignore:
        raise ValueError(f"--ignore: {target!r} is the target.")
    if table.unnamed:
        note(f"columns without a name: {table.unnamed}, left out")
    surveys = _surveys(table, [name for name in table.names if name not in ignore])
    kinds = {
        name: "category" if name in categories else survey.kind for name, survey in surveys.items()
    }
    task = _task(table, surveys[target], kinds[target], task, note)
    kinds[target] = "category" if task == "classification" else "number"
    for name, survey in surveys.items():
        if name != target and _is_useless(survey, kinds[name], note):
            del kinds[name]
        elif kinds[name] == "number":
            _check_numbers(table, survey)
    if len(kinds) < 2:
        raise ValueError(f"{path} has no column to predict {target!r} from.")
    count = surveys[target].present
    columns = _read(table, kinds, count, folder)
    found = columns.pop(target)[:]
    for name in columns:
        note(f"column {name}: {_describe(surveys[name], kinds[name])}")
    if task == "regression":
        return TrainingTable(columns, found, ())
    classes, labels = np.unique(_plain_labels(found), return_inverse=True)
    return TrainingTable(columns, labels, tuple(map(str, classes)))


def _check_column(table: TableFile, name: str) -> None:
    if name not in table.names:
        raise ValueError(
            f"{table.path} has no column {name!r}; its columns are {', '.join(table.names)}."
        )


def _surveys(table: TableFile, names: Sequence[str]) -> dict[str, Survey]:
    surveys = {name: Survey(name, comma=table.separator == ";") for name in names}
    for chunk in table.chunks():
        for name, survey in surveys.items():
            survey.add(chunk.columns[name], chunk.lines)
    if not any(survey.present for survey in surveys.values()):
        raise ValueError(f"{table.path} has no rows below the names of its columns.")
    return surveys


def _task(table: TableFile, survey: Survey, kind: Kind, given: Task | None, note: Note) -> Task:
    """Return the task, or raise ValueError unless the target suits it."""
    name, distinct = survey.name, len(survey.distinct)
    if survey.missing:
        more = f" and {survey.missing - len(survey.gaps)} more" if survey.missing > 10 else ""
        raise ValueError(
            f"the target {name!r} has no value in line {', '.join(map(str, survey.gaps))}{more} of "
            f"{table.path}. Remove these lines."
        )
    texts = (label_of(text).lstrip("+-") for text in survey.distinct)
    whole = kind == "number" and all(map(str.isdigit, texts))
    few = distinct <= MOST_CLASSES and 5 * distinct <= survey.present
    task: Task = given or (
        "classification" if kind == "category" or (whole and few) else "regression"
    )
    if kind == "date":
        raise ValueError(f"the target {name!r} holds dates; expected classes or numbers.")
    if task == "regression" and survey.odd:
        line, text = survey.odd
        raise ValueError(
            f"regression needs a target of numbers; {name!r} has {text!r:.60} in line {line}. "
            "Correct it, or use --task classification."
        )
    if distinct < 2:
        raise ValueError(
            f"the target {name!r} has the same value, {next(iter(survey.distinct))!r}, in every "
            "row: there is nothing to predict."
        )
    if task == "classification" and 2 * distinct > survey.present:
        raise ValueError(
            f"the target {name!r} has {distinct} or more distinct values in {survey.present} rows; "
            "expected several rows of each class. Use --task regression for numbers."
        )
    what = f"{distinct} classes" if task == "classification" else "numbers"
    chosen = "" if given else "; --task changes this"
    note(f"task: {task} of {name}, {what}{chosen}")
    return task


def _is_useless(survey: Survey, kind: Kind, note: Note) -> bool:
    """Return whether a column is left out, and say so."""
    if not survey.present:
        note(f"column {survey.name}: no values, left out")
    elif kind == "category" and (survey.is_identifier or len(survey.distinct) > 1000):
        count = "over 1,000" if len(survey.distinct) > 1000 else f"{len(survey.distinct)}"
        note(
            f"column {survey.name}: {count} distinct texts in {survey.present} rows, probably an "
            "identifier or free text, left out (dates are read as 2024-05-31)"
        )
    else:
        return False
    return True


def _check_numbers(table: TableFile, survey: Survey) -> None:
    if survey.odd:
        line, text = survey.odd
        raise ValueError(
            f"line {line} of {table.path}, column {survey.name!r}: {text!r:.60} is not a number, "
            f"but {survey.numbers} of {survey.present} values are. Correct it, leave it empty if "
            f"it is missing, or use --categories {survey.name} or --ignore {survey.name}."
        )


def _read(
    table: TableFile, kinds: dict[str, Kind], count: int, folder: Path | None
) -> dict[str, StoredColumn]:
    columns = {name: StoredColumn.of(kind, count, folder) for name, kind in kinds.items()}
    for chunk in table.chunks():
        for name, column in columns.items():
            comma = table.separator == ";"
            cells = chunk.columns[name]
            column.append(values_of(cells, column.kind, name, chunk.lines, comma=comma))
    return columns


def label_of(text: str) -> str:
    """Return the name of a class: 2.0 and 2 are the same."""
    whole, _, zeros = text.partition(".")
    return whole if whole.lstrip("+-").isdigit() and zeros.strip("0") == "" else text


def _plain_labels(texts: NDArray[Any]) -> NDArray[Any]:
    return np.array([label_of(text) for text in texts], dtype=object)


def _describe(survey: Survey, kind: Kind) -> str:
    gaps = f", {survey.missing} missing" if survey.missing else ""
    if kind == "category":
        return f"{len(survey.distinct)} categories{gaps}"
    return f"{kind}s{gaps}"
