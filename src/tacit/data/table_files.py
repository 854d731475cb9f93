"""CSV and Parquet files read in chunks of rows, as columns of text with line numbers.

Types are decided from the whole file, by `tacit.data.text_columns`.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tacit.data import parquet_file
from tacit.data.decoding import listed
from tacit.data.text_columns import is_number

CHUNK = 4096  # rows read at a time
SEPARATORS = ",;\t"
PARQUET = (".parquet", ".pq")


@dataclass(frozen=True)
class Chunk:
    """Some rows of a table.

    Attributes:
        lines: Line of each row in its file, from 1; of Parquet, the number of the row.
        columns: Name of a column -> the text of each row, stripped.
    """

    lines: Sequence[int]
    columns: dict[str, list[str]]


@dataclass(frozen=True)
class TableFile:
    """A table in a file; made by `open_table`.

    Attributes:
        path: The file.
        names: Names of the columns; columns without a name are left out.
        unnamed: Number of columns without a name.
        separator: Separator of a CSV; "" for Parquet.
    """

    path: Path
    names: tuple[str, ...]
    unnamed: int
    separator: str

    def chunks(self, size: int = CHUNK) -> Iterator[Chunk]:
        """Yield all rows, at most `size` at a time.

        Raises:
            ValueError: If a row has more or fewer values than there are columns; the message names
                its line.
        """
        if not self.separator:
            start = 1
            for columns in parquet_file.chunks(self.path, self.names, size):
                count = len(columns[self.names[0]])
                yield Chunk(range(start, start + count), columns)
                start += count
            return
        rows = _rows(self.path, self.separator)
        _, header = next(rows)
        places = [(name.strip(), i) for i, name in enumerate(header) if name.strip()]
        while part := list(islice(rows, size)):
            for line, row in part:
                if len(row) != len(header):
                    raise ValueError(
                        f"line {line} of {self.path} has {len(row)} values, expected "
                        f"{len(header)} as in its first line. Check its quotes and separators "
                        f"({_name(self.separator)} here)."
                    )
            lines = [line for line, _ in part]
            yield Chunk(lines, {name: [row[i].strip() for _, row in part] for name, i in places})


def open_table(path: str | Path) -> TableFile:
    r"""Return a table in a CSV or Parquet file.

    A CSV is in UTF-8, with or without a byte order mark, and has the names of its columns in the
    first line. Its separator, one of comma, semicolon and tab, is the one by which the first two
    lines have the same number of columns, and the most.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is empty, or its first line doesn't name the columns.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "flats.csv"
        >>> _ = path.write_text("area;city\n54,5;Rome\n")
        >>> table = open_table(path)
        >>> table.names, next(table.chunks()).columns
        (('area', 'city'), {'area': ['54,5'], 'city': ['Rome']})
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    if path.suffix.lower() in PARQUET:
        columns = parquet_file.columns_of(path)
        names = tuple(name for name in columns if not parquet_file.is_index(name))
        _check_names(path, names)
        return TableFile(path, names, len(columns) - len(names), "")
    header, separator = _header(path)
    names = tuple(name.strip() for name in header if name.strip())
    _check_names(path, names)
    if all(is_number(name) for name in names):
        raise ValueError(
            f"{path}: expected the names of the columns in the first line, received numbers: "
            f"{listed(names)}. Add a first line with names."
        )
    return TableFile(path, names, len(header) - len(names), separator)


def _check_names(path: Path, names: Sequence[str]) -> None:
    if not names:
        raise ValueError(f"{path} has no columns: expected their names in the first line.")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path}: several columns are named {listed(twice)}. Rename them.")


def _header(path: Path) -> tuple[list[str], str]:
    """Return the cells of the first line, and the separator."""
    found: list[tuple[bool, int, list[str], str]] = []
    problems = []
    for separator in SEPARATORS:
        try:
            first = [row for _, row in islice(_rows(path, separator), 2)]
        except ValueError as error:  # quotes that end before another separator
            problems.append(error)
            continue
        if not first:
            raise ValueError(f"{path} is empty: expected a first line with the names of columns.")
        found.append((len(first[0]) == len(first[-1]), len(first[0]), first[0], separator))
    if not found:
        raise problems[0]
    _, _, header, separator = max(found, key=lambda entry: (entry[0] and entry[1] > 1, entry[1]))
    return header, separator


def _rows(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, with the number of their first line."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=separator, strict=True)
        line = 1
        try:
            for row in reader:
                if any(map(str.strip, row)):
                    yield line, row
                line = reader.line_num + 1
        except csv.Error as error:
            raise ValueError(
                f"line {line} of {path} can't be read: {error}. Check its quotes."
            ) from None
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not in UTF-8, somewhere after line {line}: {error.reason}. Save it as "
                "CSV in UTF-8."
            ) from None


def _name(separator: str) -> str:
    return {",": "comma", ";": "semicolon", "\t": "tab"}[separator]
