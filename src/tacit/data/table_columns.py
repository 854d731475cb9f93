"""Columns of tables as arrays of numbers, dates or categories, with their missing values.

Columns come from pandas, NumPy or lists. pandas is not imported: its types are recognised by what
NumPy makes of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Kind: TypeAlias = Literal["number", "date", "category"]
Read: TypeAlias = tuple[NDArray[Any], NDArray[np.bool_]]
"""Values of a column, and which of them are missing."""

FEW = 20  # texts of a column that are categories, however few rows there are
NUMBERS = (Real, Decimal, np.bool_)
DATES = (date, np.datetime64)


def columns_of(table: Any) -> dict[str, Any]:
    """Return the columns of a table by name; those of an array are named "0", "1" and so on.

    Args:
        table: A pandas DataFrame, a dict of columns, or an array (B, D).

    Raises:
        TypeError: If it is something else.
        ValueError: If two columns have the same name, or their lengths differ.
    """
    if isinstance(table, np.ndarray) and table.ndim == 2:
        return {str(i): table[:, i] for i in range(table.shape[1])}
    if isinstance(table, Mapping):
        names = list(table)
    elif hasattr(table, "columns"):
        names = list(table.columns)
    else:
        raise TypeError(
            "table: expected a pandas DataFrame, a dict of columns or an array of two dimensions, "
            f"received {type(table).__name__}."
        )
    texts = [str(name) for name in names]
    twice = [name for name, count in Counter(texts).items() if count > 1]
    if twice:
        raise ValueError(f"table: several columns have the name {', '.join(twice)}.")
    found = {text: table[name] for text, name in zip(texts, names, strict=True)}
    if len({len(column) for column in found.values()}) > 1:
        raise ValueError("table: expected columns of the same length.")
    return found


def kind_of(name: str, column: Any) -> Kind:
    """Return what a column holds; a column without any value is one of categories.

    Args:
        name: Name of the column in the error message.
        column: A pandas Series, an array or a list.

    Raises:
        TypeError: If it holds neither numbers, dates nor strings.
    """
    if is_categorical(column):
        return "category"
    array = _array(column)
    if array.dtype.kind in "biuf":
        return "number"
    if array.dtype.kind == "M":
        return "date"
    present = {type(value) for value in array if not _is_missing(value)}
    if present and all(issubclass(kind, NUMBERS) for kind in present):
        return "number"
    if present and all(issubclass(kind, DATES) for kind in present):
        return "date"
    unknown = [kind.__name__ for kind in present if not issubclass(kind, (str, *NUMBERS))]
    if unknown:
        raise TypeError(
            f"column {name!r}: expected numbers, dates or strings, received {unknown[0]}. "
            "Convert the column, or leave it out."
        )
    return "category"


def are_identifiers(distinct: int, present: int) -> bool:
    """Return whether so many distinct texts of a column name its rows rather than categories.

    Args:
        distinct: Number of distinct texts.
        present: Number of texts.
    """
    return distinct > FEW and 2 * distinct > present


def read(name: str, column: Any, kind: Kind) -> Read:
    """Return the values of a column: numbers, seconds since 1970 (UTC), or categories as strings.

    Args:
        name: Name of the column in the error message.
        column: A pandas Series, an array or a list.
        kind: What it should hold.

    Raises:
        TypeError: If it holds something else.
        ValueError: If a number is infinite.
    """
    array = np.asarray(column, dtype=object) if is_categorical(column) else _array(column)
    if kind == "number" and array.dtype.kind in "biuf":
        values = array.astype(np.float64)
        return _finite(name, values), np.isnan(values)
    if kind == "date" and array.dtype.kind == "M":
        return _seconds(array), np.isnat(array)
    objects = array.astype(object)
    missing = np.fromiter(map(_is_missing, objects), dtype=bool, count=len(objects))
    accepted, convert = CONVERSIONS[kind]
    wrong = [value for value in objects[~missing] if not isinstance(value, accepted)]
    if wrong:
        raise TypeError(f"column {name!r}: expected {kind} values, received {wrong[0]!r:.60}.")
    values = np.full(len(objects), "" if kind == "category" else np.nan, dtype=object)
    values[~missing] = [convert(value) for value in objects[~missing]]
    if kind == "category":
        return values, missing
    return _finite(name, values.astype(np.float64)), missing


def is_categorical(column: Any) -> bool:
    """Return whether a column is of pandas' type `category`."""
    return hasattr(getattr(column, "dtype", None), "categories")


def _array(column: Any) -> NDArray[Any]:
    # NumPy would make strings of a list of numbers and strings.
    array = np.asarray(column, dtype=object) if isinstance(column, list) else np.asarray(column)
    if array.ndim != 1:
        raise TypeError(f"table: expected columns of one dimension, received {array.shape}.")
    return array


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return True
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    return isinstance(value, (float, np.floating)) and bool(value != value)


def _finite(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    if np.isinf(values).any():
        raise ValueError(
            f"column {name!r}: expected finite numbers or missing values, received infinity."
        )
    return values


def _seconds(dates: NDArray[Any]) -> NDArray[np.float64]:
    seconds: NDArray[np.float64] = dates.astype("datetime64[us]").astype(np.int64) / 1e6
    return seconds


def _date(value: Any) -> float:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(timezone.utc).replace(tzinfo=None)
    return float(_seconds(np.array(value, dtype="datetime64[us]")))


def _text(value: Any) -> str:
    """Return a category as a string; 2 and 2.0 are the same one."""
    if isinstance(value, (str, bool, np.bool_)) or value != value // 1:
        return str(value)
    return str(int(value))


CONVERSIONS: dict[Kind, tuple[tuple[type, ...], Callable[[Any], Any]]] = {
    "number": (NUMBERS, float),
    "date": (DATES, _date),
    "category": ((str, *NUMBERS), _text),
}
"""Accepted types of each kind of column, and how a value is converted."""
