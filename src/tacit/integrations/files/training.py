"""Training from files: a model for the rows of a table, or for images in folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit._support import checks
from tacit.data import Augmentation, image_folder
from tacit.data.images import Images
from tacit.data.splits import stratified
from tacit.integrations.files.inputs import ImageInputs, TableInputs
from tacit.integrations.files.learning import (
    DEFAULT,
    Settings,
    check_task,
    learned,
    likelihood_for,
    with_held_out,
)
from tacit.integrations.files.model import FileModel
from tacit.integrations.files.stored_rows import StoredColumn, on_disk
from tacit.integrations.files.training_table import Note, Task, read_training_table
from tacit.models import MLP, ResNet18

SHARE = 0.1  # of the examples, held out for validation, and again for sets or intervals
LEAST = 20  # rows held out, as long as these are at most a quarter
NEEDED = 9  # examples that a level of 0.9 needs
MOST_VALIDATION = 20_000  # rows held out for validation at most
MOST_SCORES = 10_000  # examples held out for sets or intervals at most
BLOCK = 16_384  # rows encoded at a time


def train_table(
    path: str | Path,
    target: str,
    *,
    task: Task | None = None,
    ignore: Sequence[str] = (),
    categories: Sequence[str] = (),
    hidden: Sequence[int] = (64, 64),
    settings: Settings | None = None,
    note: Note = lambda text: None,
) -> FileModel:
    """Train a model that predicts a column of a table from the others.

    A tenth of the rows ends training and sets the temperature or noise scale, another tenth decides
    sets or intervals and which inputs are foreign.

    Args:
        path: CSV or Parquet file.
        target: Name of the column to predict.
        task: Classification or regression; decided by the target if None.
        ignore: Columns to leave out.
        categories: Columns of numbers that are codes of categories.
        hidden: Widths of the hidden layers.
        settings: Settings of training.
        note: Receives what is decided, in sentences.

    Returns:
        The model, with what the inputs are and the scores for sets or intervals.

    Raises:
        ValueError: If the file can't be used; the message names line and column.

    Examples:
        >>> import pandas, tempfile
        >>> columns = {"size": range(90), "place": ["city", "village"] * 45, "price": range(90)}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "homes.csv"
        ...     pandas.DataFrame(columns).to_csv(path, index=False)
        ...     model = train_table(path, "price", settings=Settings(epochs=5, progress=False))
        >>> model.task, model.inputs.encoder.features
        ('regression', ['size', 'place=city', 'place=village'])
    """
    settings = settings or Settings()
    table = read_training_table(
        path, target, task=task, ignore=ignore, categories=categories, folder=settings.folder,
        note=note,
    )  # fmt: skip
    classes = table.classes
    check_task(settings, classes)
    groups = table.targets if table.classes else np.zeros(len(table.targets), dtype=np.int64)
    parts = _rows(groups, settings.seed)
    inputs = TableInputs.fit((name, column[parts[0]]) for name, column in table.columns.items())
    encoded = [_encoded(inputs, table.columns, rows, settings.folder) for rows in parts]
    if settings.method != DEFAULT:  # plain networks don't standardise their inputs
        inputs = inputs.standardised(encoded[0])
        for rows in encoded:
            inputs.scale_(rows)
    targets = torch.from_numpy(table.targets if table.classes else table.targets.astype(np.float32))
    train, validation, held_out = (
        (rows, targets[part]) for rows, part in zip(encoded, parts, strict=True)
    )
    del table, encoded
    note(
        f"rows: {len(train[0])} for training, {len(validation[0])} to end it, {len(held_out[0])} "
        "for sets or intervals"
    )
    likelihood, outputs = likelihood_for(classes, settings.method)
    sizes = (len(inputs.encoder.features), *hidden, outputs)
    note(f"network: MLP {'-'.join(map(str, sizes))}{_described(settings)}")
    model = learned(
        lambda: MLP(sizes[0], hidden, outputs), likelihood, train, validation, settings,
        table=True,
    )  # fmt: skip
    return with_held_out(
        FileModel(model, inputs, target, settings.seed), validation, held_out, note
    )


def train_images(
    path: str | Path,
    *,
    size: int = 64,
    width: int = 16,
    flip: bool = False,
    skip_broken: bool = False,
    settings: Settings | None = None,
    note: Note = lambda text: None,
) -> FileModel:
    """Train a classifier of images.

    A tenth of the images ends training and sets the temperature, another tenth decides sets and
    which images are foreign. Folders `validation` and `test` are used as in
    `tacit.data.image_folder`: the first in place of both tenths, the second not at all.

    Args:
        path: A folder with a folder for each class, or a CSV of files; see `image_folder`.
        size: Height and width in pixels that images are resized to.
        width: Width of the network, a ResNet-18.
        flip: Whether mirror images have the same class; used to augment the training images.
        skip_broken: Whether to leave out files that can't be read.
        settings: Settings of training.
        note: Receives what is decided, in sentences.

    Returns:
        The model, with what the inputs are and the scores for sets.

    Raises:
        ValueError: If files can't be assigned to classes, or can't be read.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for i in range(40):
        ...         file = Path(folder) / ("dark" if i % 2 else "light") / f"{i}.png"
        ...         file.parent.mkdir(exist_ok=True)
        ...         Image.new("RGB", (32, 32), (20, 20, i) if i % 2 else (220, 220, i)).save(file)
        ...     settings = Settings(epochs=1, progress=False)
        ...     model = train_images(folder, size=32, width=4, settings=settings)
        >>> model.task, model.classes
        ('classification', ('dark', 'light'))
    """
    settings = settings or Settings()
    checks.positive_integer("size", size)
    augment = Augmentation(flip=flip, crop=min(4, size // 8), colour=0.2)
    found = image_folder(
        path, size, validation=2 * SHARE, test=0.0, seed=settings.seed, skip_broken=skip_broken,
        augment=augment,
    )  # fmt: skip
    train: Images = found.train
    # In pseudo-random order, so that each half is a sample.
    half = len(found.validation) // 2
    half = min(half, MOST_SCORES) if half >= NEEDED else 0
    held_out, validation = found.validation[:half], found.validation[half:]
    classes = train.class_names or ()
    note(f"task: classification of images, {len(classes)} classes: {', '.join(classes)}")
    note(
        f"images: {len(train)} for training, {len(validation)} to end it, {len(held_out)} for sets"
    )
    note(
        f"network: ResNet18 of width {width}, images of {size} x {size} pixels"
        f"{_described(settings)}"
    )
    likelihood, _ = likelihood_for(classes, settings.method)
    model = learned(
        lambda: ResNet18(len(classes), width=width), likelihood, train, validation, settings,
        table=False,
    )  # fmt: skip
    inputs = ImageInputs(size, size, train.mean, train.std)
    return with_held_out(
        FileModel(model, inputs, "label", settings.seed), validation, held_out, note
    )


def _described(settings: Settings) -> str:
    return "" if settings.method == DEFAULT else f", method {settings.method}"


def _rows(groups: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], ...]:
    """Return the rows for training, for validation, and for sets or intervals.

    None are held out for sets or intervals if a quarter of the rows is too few for a level of 0.9.
    """
    every, count = np.arange(len(groups)), len(groups)
    held_out = np.zeros(count, dtype=bool)
    if count // 4 >= NEEDED:
        held_out = stratified(groups, min(SHARE, MOST_SCORES / count), LEAST, seed)
    rest = every[~held_out]
    # Of the rest, equal to a tenth of all rows.
    share = min(SHARE * count, MOST_VALIDATION) / len(rest)
    validation = stratified(groups[rest], share, LEAST, seed)
    return rest[~validation], rest[validation], every[held_out]


def _encoded(
    inputs: TableInputs,
    columns: Mapping[str, StoredColumn],
    rows: NDArray[np.int64],
    folder: Path | None,
) -> Tensor:
    """Return rows as numbers, on disk, encoded in blocks."""
    result = on_disk((len(rows), len(inputs.encoder.features)), np.float32, folder)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        found = inputs.encoded({name: column[block] for name, column in columns.items()})
        result[start : start + BLOCK] = found.numpy()
    return torch.from_numpy(result)
