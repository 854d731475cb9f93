"""Tables with numbers, categories, dates and missing values, encoded as numbers for a network."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tacit._support import checks, schema
from tacit.data.table_columns import (
    Kind,
    are_identifiers,
    columns_of,
    is_categorical,
    kind_of,
    read,
)

DAY = 86_400.0  # seconds

RULE = schema.record(
    {
        "columns": schema.list_of(
            schema.record(
                {
                    "name": schema.text,
                    "kind": schema.one_of("number", "date", "category"),
                    "missing": schema.boolean,
                    "fill": schema.number(),
                    "categories": schema.list_of(schema.text),
                }
            )
        )
    }
)


@dataclass(frozen=True)
class Column:
    """How a column of a table is encoded.

    Attributes:
        name: Name of the column.
        kind: A number is kept; a date becomes the days since `fill`; a category becomes one column
            of zeros and ones for each of `categories`.
        missing: Whether a further column marks missing values.
        fill: Replaces missing numbers; for dates, in seconds since 1970.
        categories: Categories with a column of their own.
    """

    name: str
    kind: Kind
    missing: bool
    fill: float = 0.0
    categories: tuple[str, ...] = ()

    @classmethod
    def fit(cls, name: str, column: Any, most_categories: int = 100) -> Column:
        """Return how to encode a column; strings are categories, however many there are."""
        kind = kind_of(name, column)
        values, missing = read(name, column, kind)
        present = values[~missing]
        if kind == "category":
            counts = Counter(sorted(present)).most_common(most_categories)  # ties: alphabetically
            categories = tuple(sorted(category for category, _ in counts))
            return cls(name, kind, bool(missing.any()), categories=categories)
        fill = float(np.median(present)) if len(present) else 0.0
        return cls(name, kind, bool(missing.any()), fill)

    @property
    def features(self) -> list[str]:
        """Names of the columns after encoding."""
        own = [self.name] if self.kind != "category" else []
        own += [f"{self.name}={category}" for category in self.categories]
        return [*own, f"{self.name} missing"] if self.missing else own

    def encode(self, column: Any) -> NDArray[np.float64]:
        """Return the encoded values of a column, (B, features)."""
        values, missing = read(self.name, column, self.kind)
        if self.kind == "category":
            places = {category: i for i, category in enumerate(self.categories)}
            found = [-1 if gap else places.get(v, -1) for v, gap in zip(values, missing)]  # noqa: B905
            encoded = np.array(found, dtype=np.int64)[:, None] == np.arange(len(places))
        else:
            encoded = np.where(missing, self.fill, values)[:, None]
        if self.kind == "date":
            encoded = (encoded - self.fill) / DAY
        parts = [encoded, missing[:, None]] if self.missing else [encoded]
        return np.concatenate(parts, axis=1).astype(np.float64, copy=False)


@dataclass(frozen=True)
class TableEncoder:
    """Encodes the columns of a table as numbers; made by `TableEncoder.fit`, described by JSON.

    Numbers and booleans are kept, and `tacit.fit` standardises them. Missing ones are replaced
    by the median, and a further column marks them if there are any in training. Dates become days
    since their median, with missing values like those of numbers. Strings and columns of pandas'
    type `category` have a column of zeros and ones for each category; unknown ones, which training
    data don't have, are all zeros. Strings that name rows rather than categories, more than 20 that
    are more than half as many as the rows, are left out, with a warning.

    Args:
        columns: The columns, in the order of their encoded values.

    Examples:
        >>> import math
        >>> table = {"age": [31, 54, math.nan], "city": ["Rome", "Oslo", "Rome"]}
        >>> encoder = TableEncoder.fit(table)
        >>> encoder.features
        ['age', 'age missing', 'city=Oslo', 'city=Rome']
        >>> encoder.transform(table)
        array([[31. ,  0. ,  0. ,  1. ],
               [54. ,  0. ,  1. ,  0. ],
               [42.5,  1. ,  0. ,  1. ]], dtype=float32)
    """

    columns: tuple[Column, ...]

    @classmethod
    def fit(cls, table: Any, *, most_categories: int = 100) -> TableEncoder:
        """Return the encoder of a table.

        Args:
            table: A pandas DataFrame, a dict of columns, or an array (B, D), whose columns are
                named "0", "1" and so on.
            most_categories: Largest number of categories of a column. If there are more, the most
                frequent are kept, and the others are encoded like unknown ones.

        Raises:
            TypeError: If a column holds neither numbers, dates nor strings.
            ValueError: If there are no columns or rows, all columns are left out, or a number is
                infinite.
        """
        checks.positive_integer("most_categories", most_categories)
        found = columns_of(table)
        if not found or not len(next(iter(found.values()))):
            raise ValueError("table: expected at least one column and one row.")
        encoder = cls(
            tuple(
                Column(name, "category", missing=False)
                if _are_identifiers(name, column)
                else Column.fit(name, column, most_categories)
                for name, column in found.items()
            )
        )
        if not encoder.features:
            raise ValueError(
                f"table: no column is left to learn from: {', '.join(found)} hold identifiers, "
                "free text or nothing."
            )
        return encoder

    @property
    def features(self) -> list[str]:
        """Names of the encoded columns."""
        return [feature for column in self.columns for feature in column.features]

    def transform(self, table: Any, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return the table as numbers, (B, features).

        Columns are found by name: their order doesn't matter, and further columns are ignored.

        Args:
            table: A table with at least the columns of training.
            dtype: Type of the numbers.

        Raises:
            TypeError: If a column holds another kind of values than in training.
            ValueError: If columns are missing, or a number is not finite in `dtype`.
        """
        found = columns_of(table)
        missing = [column.name for column in self.columns if column.name not in found]
        if missing:
            raise ValueError(
                f"table: the columns {', '.join(missing)} are missing. Expected those of training: "
                f"{', '.join(column.name for column in self.columns)}."
            )
        encoded = [column.encode(found[column.name]) for column in self.columns]
        with np.errstate(over="ignore"):
            result = np.concatenate(encoded, axis=1).astype(dtype, copy=False)
        if not np.isfinite(result).all():
            wrong = self.features[int(np.argmin(np.isfinite(result).all(0)))]
            raise ValueError(f"column {wrong!r}: some numbers are too large for {result.dtype}.")
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return the encoder as JSON-serialisable data."""
        columns = [{**asdict(c), "categories": list(c.categories)} for c in self.columns]
        return {"columns": columns}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> TableEncoder:
        """Return the encoder that `to_dict` described.

        Raises:
            ValueError: If an entry is missing, unknown or of the wrong type.
        """
        RULE("table encoder", given)
        columns = [Column(**{**c, "categories": tuple(c["categories"])}) for c in given["columns"]]
        names = [column.name for column in columns]
        if not names or len(set(names)) < len(names):
            raise ValueError("table encoder: expected columns with distinct names.")
        if any(column.categories and column.kind != "category" for column in columns):
            raise ValueError("table encoder: only columns of categories have categories.")
        return cls(tuple(columns))


def _are_identifiers(name: str, column: Any) -> bool:
    """Return whether strings name rows rather than categories, and warn that they are left out."""
    if is_categorical(column) or kind_of(name, column) != "category":
        return False
    values, missing = read(name, column, "category")
    distinct, present = len(set(values[~missing])), int((~missing).sum())
    if not are_identifiers(distinct, present):
        return False
    warnings.warn(
        f"column {name!r}: {distinct} distinct texts in {present} rows, probably an identifier or "
        "free text, left out. Drop it yourself; or convert it, dates by pandas.to_datetime, texts "
        "to pandas' type category.",
        stacklevel=4,
    )
    return True
