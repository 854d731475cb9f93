"""Parquet files as columns of text, read in chunks of rows; needs pyarrow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

INDEX = re.compile(r"__index_level_\d+__")  # pandas writes the index of its rows as a column


def is_index(name: str) -> bool:
    """Return whether a column is the index of a pandas DataFrame."""
    return INDEX.fullmatch(name) is not None


def columns_of(path: Path) -> list[str]:
    """Return the names of the columns.

    Raises:
        ValueError: If the file can't be read, or a column holds neither numbers, texts, dates nor
            booleans.
    """
    with _opened(path) as (file, types):
        for each in file.schema_arrow:
            kind = each.type.value_type if types.is_dictionary(each.type) else each.type
            if types.is_nested(kind) or types.is_binary(kind) or types.is_time(kind):
                raise ValueError(
                    f"{path}, column {each.name!r}: expected numbers, texts, dates or truth "
                    f"values, received {each.type}. Convert the column, or leave it out."
                )
        return list(file.schema_arrow.names)


def chunks(path: Path, names: Sequence[str], size: int) -> Iterator[dict[str, list[str]]]:
    """Yield rows as columns of text by name, at most `size` at a time."""
    with _opened(path) as (file, types):
        for batch in file.iter_batches(size, columns=list(names), use_threads=False):
            yield {name: _texts(batch.column(name), types) for name in names}


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a file, and return it with `pyarrow.types`."""
    try:
        from pyarrow import ArrowException, types
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError:
        raise ValueError(
            f"{path}: Parquet needs pyarrow: pip install 'tacit-torch[parquet]', or save the table "
            "as CSV."
        ) from None
    try:
        with ParquetFile(path) as file:
            yield file, types
    except ArrowException as error:
        raise ValueError(f"{path} can't be read as Parquet: {error}") from error


def _texts(column: Any, types: Any) -> list[str]:
    if types.is_timestamp(column.type):
        from pyarrow import timestamp

        # Nanoseconds would come as pandas' type.
        column = column.cast(timestamp("us", column.type.tz), safe=False)
    return [_text(value) for value in column.to_pylist()]


def _text(value: Any) -> str:
    """Return a value as it would be in a CSV."""
    if value is None or value != value:
        return ""
    return value.isoformat() if isinstance(value, date) else str(value).strip()
