"""Inputs of a model that comes from files: rows of a table or images, and how foreign they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit._support import schema
from tacit.data.images import Images
from tacit.data.table_columns import read
from tacit.data.table_encoder import Column, TableEncoder
from tacit.data.table_files import Chunk
from tacit.data.text_columns import values_of
from tacit.training.units import Moments

MARGIN = 0.5  # of the training range, by which a number has to be outside to be foreign
BLOCK = 16_384  # rows scaled at a time
MOST_PIXELS = 4096  # height and width of images

Columns: TypeAlias = Mapping[str, NDArray[Any]]

SEEN = schema.record(
    {
        "low": schema.optional(schema.number()),
        "high": schema.optional(schema.number()),
        "rare": schema.list_of(schema.text),
    }
)
TABLE_RULE = schema.record(
    {
        "kind": schema.text,
        "encoder": schema.anything,  # checked by TableEncoder.from_dict
        "seen": schema.list_of(SEEN),
    },
    optional={
        "scaling": schema.record(
            {"mean": schema.list_of(schema.number()), "std": schema.list_of(schema.number(1e-300))}
        )
    },
)
IMAGES_RULE = schema.record(
    {
        "kind": schema.text,
        "height": schema.integer(1, MOST_PIXELS),
        "width": schema.integer(1, MOST_PIXELS),
        "mean": schema.list_of(schema.number()),
        "std": schema.list_of(schema.number(1e-12)),
    }
)
RULE = schema.one_kind_of({"table": TABLE_RULE, "images": IMAGES_RULE})


@dataclass(frozen=True)
class Seen:
    """Values of a column in training.

    Attributes:
        low: Smallest number, or date in seconds since 1970; None if there was none.
        high: Largest one.
        rare: Categories that the encoder doesn't know, because there are more frequent ones.
    """

    low: float | None = None
    high: float | None = None
    rare: tuple[str, ...] = ()

    @classmethod
    def of(cls, column: Column, values: NDArray[Any]) -> Seen:
        """Return what training rows have in a column."""
        found, missing = read(column.name, values, column.kind)
        present = found[~missing]
        if column.kind == "category":
            return cls(rare=tuple(sorted({str(value) for value in present} - {*column.categories})))
        if not len(present):
            return cls()
        return cls(float(present.min()), float(present.max()))

    def foreign(self, column: Column, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values are unlike those of the training rows.

        Numbers and dates are foreign outside of the training range by more than half of it,
        categories if there were none like them, gaps if there were none.
        """
        found, missing = read(column.name, values, column.kind)
        gaps: NDArray[np.bool_] = missing & (not column.missing)
        if column.kind == "category":
            known = {*column.categories, *self.rare}
            unknown = np.array([value not in known for value in found], dtype=bool)
        elif self.low is None or self.high is None:
            unknown = np.ones(len(found), dtype=bool)
        else:
            slack = MARGIN * (self.high - self.low)
            # A date is missing as the smallest integer; the mask below leaves it out.
            unknown = (found < self.low - slack) | (found > self.high + slack)
        return np.where(missing, gaps, unknown)


@dataclass(frozen=True)
class TableInputs:
    """Rows of a table.

    Attributes:
        encoder: Turns rows into numbers.
        seen: What training rows have in each column of the encoder.
        scaling: Mean and standard deviation of each feature, for models that don't standardise
            their inputs themselves.
    """

    encoder: TableEncoder
    seen: tuple[Seen, ...]
    scaling: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @classmethod
    def fit(cls, columns: Iterable[tuple[str, NDArray[Any]]]) -> TableInputs:
        """Return how to encode the columns of training rows, and what they have.

        Args:
            columns: Names and values, one column at a time.
        """
        encoded, seen = [], []
        for name, values in columns:
            column = Column.fit(name, values)
            encoded.append(column)
            seen.append(Seen.of(column, values))
        return cls(TableEncoder(tuple(encoded)), tuple(seen))

    def read(self, chunk: Chunk, *, comma: bool = False) -> dict[str, NDArray[Any]]:
        """Return the values of the columns in a chunk of a file; further columns are ignored.

        Args:
            chunk: Rows of the file.
            comma: Whether the decimal mark may be a comma.

        Raises:
            ValueError: If a value is not of the column's kind; the message names its line.
        """
        return {
            column.name: values_of(
                chunk.columns[column.name], column.kind, column.name, chunk.lines, comma=comma
            )
            for column in self.encoder.columns
        }

    def encoded(self, columns: Columns) -> Tensor:
        """Return rows as numbers, (B, features), in float32."""
        return self.scale_(torch.from_numpy(self.encoder.transform(dict(columns))))

    def standardised(self, rows: Tensor) -> TableInputs:
        """Return the inputs with the scaling of encoded training rows."""
        moments = Moments()
        for block in rows.split(BLOCK):
            moments.add(block)
        mean, std = moments.mean.float(), moments.std.float()
        return replace(self, scaling=(tuple(mean.tolist()), tuple(std.tolist())))

    def scale_(self, rows: Tensor) -> Tensor:
        """Change encoded rows, in place, to the units of `scaling`, if there is one."""
        if self.scaling is not None:
            mean, std = (torch.tensor(values) for values in self.scaling)
            for block in rows.split(BLOCK):
                block.sub_(mean).div_(std)
        return rows

    def foreign(self, columns: Columns, texts: Mapping[str, list[str]]) -> list[list[str]]:
        """Return, for each row, the columns with foreign values, as `name: value`.

        Args:
            columns: Values of the columns.
            texts: The same as texts.
        """
        reasons: list[list[str]] = [[] for _ in next(iter(columns.values()))]
        for column, seen in zip(self.encoder.columns, self.seen, strict=True):
            for row in np.flatnonzero(seen.foreign(column, columns[column.name])):
                text = texts[column.name][row] or "missing"
                reasons[row].append(f"{column.name}: {text}")
        return reasons

    def to_dict(self) -> dict[str, Any]:
        """Return a description as JSON-serialisable data."""
        seen = [{**asdict(each), "rare": list(each.rare)} for each in self.seen]
        found = {"kind": "table", "encoder": self.encoder.to_dict(), "seen": seen}
        if self.scaling is not None:
            found["scaling"] = {"mean": list(self.scaling[0]), "std": list(self.scaling[1])}
        return found


@dataclass(frozen=True)
class ImageInputs:
    """Images of one size.

    Attributes:
        height: Height in pixels.
        width: Width in pixels.
        mean: Mean of each channel, for pixels in [0, 1].
        std: Standard deviation of each channel.
    """

    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return len(self.mean)

    def normalised(self, pixels: NDArray[np.uint8]) -> Images:
        """Return decoded images, (B, C, H, W), as the model takes them."""
        return Images(
            torch.from_numpy(pixels),
            torch.zeros(len(pixels), dtype=torch.long),
            self.mean,
            self.std,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a description as JSON-serialisable data."""
        return {"kind": "images", **asdict(self), "mean": list(self.mean), "std": list(self.std)}


def inputs_from_dict(given: Mapping[str, Any]) -> TableInputs | ImageInputs:
    """Return the inputs that `to_dict` described.

    Raises:
        ValueError: If an entry is missing, unknown or of the wrong type.
    """
    RULE("inputs", given)
    if given["kind"] == "table":
        encoder = TableEncoder.from_dict(given["encoder"])
        seen = [Seen(each["low"], each["high"], tuple(each["rare"])) for each in given["seen"]]
        if len(seen) != len(encoder.columns):
            raise ValueError("inputs: expected one entry of 'seen' for each column.")
        return TableInputs(encoder, tuple(seen), _scaling(given.get("scaling"), encoder))
    if len(given["mean"]) != len(given["std"]) or len(given["mean"]) not in (1, 3):
        raise ValueError("inputs: expected mean and std of 1 or 3 channels.")
    return ImageInputs(given["height"], given["width"], tuple(given["mean"]), tuple(given["std"]))


def _scaling(
    given: Mapping[str, Any] | None, encoder: TableEncoder
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    if given is None:
        return None
    mean, std = tuple(given["mean"]), tuple(given["std"])
    if not len(mean) == len(std) == len(encoder.features):
        raise ValueError("inputs: expected mean and std of each feature in 'scaling'.")
    return mean, std
