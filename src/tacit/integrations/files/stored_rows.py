"""Rows of a table on disk: columns and encoded rows in temporary files, mapped into memory.

The files have no name, or are deleted when the process ends, however it ends. What the system keeps
of them in memory it can drop at any time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tacit.data.table_columns import Kind

DTYPES = {"number": "float64", "date": "datetime64[us]", "category": "int32"}


def on_disk(shape: tuple[int, ...], dtype: DTypeLike, folder: Path | None = None) -> NDArray[Any]:
    """Return an array of zeros in a temporary file.

    Args:
        shape: Its shape.
        dtype: Its type.
        folder: Folder of the file, made if needed; by default that of the system.
    """
    if 0 in shape:
        return np.zeros(shape, dtype)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, dtype, "w+", shape=shape)


@dataclass
class StoredColumn:
    """Values of a column: numbers, dates, or categories as numbers of texts.

    Indexing returns values as `tacit.data.text_columns.values_of` does.

    Attributes:
        kind: What the column holds.
        values: The values; of a category its place in `texts`, -1 if it is missing.
        texts: The different categories.
    """

    kind: Kind
    values: NDArray[Any]
    texts: list[str] = field(default_factory=list)
    filled: int = 0

    def __post_init__(self) -> None:
        self._places: dict[str, int] = {}

    @classmethod
    def of(cls, kind: Kind, count: int, folder: Path | None = None) -> StoredColumn:
        """Return a column for a number of values."""
        return cls(kind, on_disk((count,), DTYPES[kind], folder))

    def append(self, values: NDArray[Any]) -> None:
        """Add the values of some rows."""
        if self.kind == "category":
            values = np.array([self._place(text) for text in values], dtype=np.int32)
        self.values[self.filled : self.filled + len(values)] = values
        self.filled += len(values)

    def _place(self, text: str | None) -> int:
        if text is None:
            return -1
        place = self._places.setdefault(text, len(self._places))
        if place == len(self.texts):
            self.texts.append(text)
        return place

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | NDArray[np.int64] | Sequence[int]) -> NDArray[Any]:
        found: NDArray[Any] = np.array(self.values[rows])
        if self.kind == "category":
            found = np.array([*self.texts, None], dtype=object)[found]
        return found
