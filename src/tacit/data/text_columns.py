"""Columns of text: which hold numbers, dates or categories, and their values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.table_columns import Kind, are_identifiers

MISSING = frozenset({"", "NA", "N/A", "#N/A", "NaN", "nan", "NULL", "null"})
MOST_DISTINCT = 1000  # categories of a column that is not an identifier
SHOWN = 10  # lines named in an error
MOSTLY = 0.9  # share of numbers from which other values are taken for errors

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
COMMA = re.compile(r"[+-]?\d*,\d+")
DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?")


def is_number(cell: str, comma: bool = False) -> bool:
    """Return whether a cell holds a finite number.

    Args:
        cell: The text.
        comma: Whether the decimal mark may be a comma, as in files separated by semicolons.
    """
    if NUMBER.fullmatch(cell):
        return abs(float(cell)) < float("inf")
    return comma and COMMA.fullmatch(cell) is not None


def is_date(cell: str) -> bool:
    """Return whether a cell holds a date, with or without a time, in ISO 8601: 2024-05-31."""
    return DATE.fullmatch(cell) is not None and _seconds(cell) is not None


def _seconds(cell: str) -> float | None:
    """Return seconds since 1970, in UTC if there is no other zone; None if it is no date."""
    whole, _, rest = cell.replace("Z", "+00:00").partition(".")
    # Python 3.10 reads fractions of three and six digits only.
    digits = re.match(r"\d*", rest)
    fraction = digits[0] if digits else ""
    try:
        found = datetime.fromisoformat(whole + rest[len(fraction) :])
    except ValueError:
        return None
    found = found if found.tzinfo else found.replace(tzinfo=timezone.utc)
    return found.timestamp() + float(f"0.{fraction or 0}")


@dataclass
class Survey:
    """What the cells of a column hold, collected over chunks of rows.

    Attributes:
        name: Name of the column.
        comma: Whether the decimal mark may be a comma.
        missing: Number of cells without a value.
        gaps: The first lines without a value.
        numbers: Number of cells that are numbers.
        dates: Number of cells that are dates.
        others: Number of cells that are neither.
        distinct: How often each text occurs, of up to `MOST_DISTINCT` and one more.
        odd: First line without a number, and its text.
    """

    name: str
    comma: bool = False
    missing: int = 0
    gaps: list[int] = field(default_factory=list)
    numbers: int = 0
    dates: int = 0
    others: int = 0
    distinct: Counter[str] = field(default_factory=Counter)
    odd: tuple[int, str] | None = None

    def add(self, cells: Sequence[str], lines: Sequence[int]) -> None:
        """Add some cells with their lines."""
        for cell, line in zip(cells, lines, strict=True):
            if cell in MISSING:
                self.missing += 1
                self.gaps += [line] if len(self.gaps) < SHOWN else []
                continue
            if cell in self.distinct or len(self.distinct) <= MOST_DISTINCT:
                self.distinct[cell] += 1
            if is_number(cell, self.comma):
                self.numbers += 1
                continue
            self.odd = self.odd or (line, cell)
            if is_date(cell):
                self.dates += 1
            else:
                self.others += 1

    @property
    def present(self) -> int:
        """Number of values."""
        return self.numbers + self.dates + self.others

    @property
    def kind(self) -> Kind:
        """What the column holds; one of numbers and a few other values holds numbers."""
        if self.present and self.numbers >= MOSTLY * self.present:
            return "number"
        return "date" if self.present and self.dates >= MOSTLY * self.present else "category"

    @property
    def is_identifier(self) -> bool:
        """Whether there are too many texts for categories: over 1,000, or over half the rows."""
        many = are_identifiers(len(self.distinct), self.present)
        return self.kind == "category" and (many or len(self.distinct) > MOST_DISTINCT)


def values_of(
    cells: Sequence[str], kind: Kind, name: str, lines: Sequence[int], *, comma: bool = False
) -> NDArray[Any]:
    """Return the values of a column: numbers, dates or texts, with NaN, NaT or None if missing.

    Args:
        cells: The texts.
        kind: What they should hold.
        name: Name of the column, for the error message.
        lines: Their lines, for the error message.
        comma: Whether the decimal mark may be a comma.

    Raises:
        ValueError: If a text is not of this kind; the message names its line.

    Examples:
        >>> values_of(["1.5", "NA"], "number", "age", [2, 3])
        array([1.5, nan])
    """
    if kind == "category":
        return np.array([None if cell in MISSING else cell for cell in cells], dtype=object)
    accept = is_date if kind == "date" else lambda cell: is_number(cell, comma)
    for cell, line in zip(cells, lines, strict=True):
        if cell not in MISSING and not accept(cell):
            expected = "a date such as 2024-05-31" if kind == "date" else "a number"
            raise ValueError(
                f"line {line}, column {name!r}: expected {expected}, as in the rest of the "
                f"column, received {cell!r:.60}. Correct it, or leave it empty if it is missing."
            )
    if kind == "date":
        seconds = [_seconds(cell) if cell not in MISSING else None for cell in cells]
        stamps = [np.iinfo(np.int64).min if s is None else round(s * 1e6) for s in seconds]
        return np.array(stamps, dtype=np.int64).view("datetime64[us]")
    return np.array(
        [float("nan") if cell in MISSING else float(cell.replace(",", ".")) for cell in cells]
    )
