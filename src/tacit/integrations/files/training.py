"""Training from files: a model for the rows of a table, or for images in folders."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit._support import checks
from tacit.calling import Variational, variational
from tacit.data import Augmentation, image_folder
from tacit.data.images import Images
from tacit.data.splits import stratified
from tacit.inference import calibrate
from tacit.integrations.files.inputs import ImageInputs, TableInputs
from tacit.integrations.files.model import QUANTILE, SAMPLES, FileModel, epistemic, nonconformity
from tacit.integrations.files.training_table import Note, Task, read_training_table
from tacit.likelihood import Categorical, HeteroscedasticStudentT, Likelihood
from tacit.models import MLP, ResNet18
from tacit.training import TrainingDivergedError, fit

SHARE = 0.1  # of the examples, held out for validation, and again for sets or intervals
LEAST = 20  # rows held out, as long as these are at most a quarter
NEEDED = 9  # examples that a level of 0.9 needs
MOST_SCORES = 10_000  # examples held out for sets or intervals at most
BLOCK = 65_536  # rows encoded at a time


@dataclass(frozen=True)
class Settings:
    """Settings of training.

    Attributes:
        epochs: Passes over the data; by default held-out examples end training.
        lr: Learning rate, by default that of `tacit.fit`.
        seed: Seed of splits, initial weights, training and predictions.
        checkpoint: Folder by which a killed run resumes.
        progress: Whether to show progress.
    """

    epochs: int | None = None
    lr: float | None = None
    seed: int = 0
    checkpoint: Path | None = None
    progress: bool = True


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

    Raises:
        ValueError: If the file can't be used; the message names line and column.
    """
    settings = settings or Settings()
    table = read_training_table(
        path, target, task=task, ignore=ignore, categories=categories, note=note
    )
    groups = table.targets if table.classes else np.zeros(len(table.targets), dtype=np.int64)
    parts = _rows(groups, settings.seed)
    inputs = TableInputs.fit({name: column[parts[0]] for name, column in table.columns.items()})
    encoded = _encoded(inputs, table.columns)
    targets = torch.from_numpy(table.targets if table.classes else table.targets.astype(np.float32))
    train, validation, held_out = ((encoded[rows], targets[rows]) for rows in parts)
    del encoded
    note(
        f"rows: {len(train[0])} for training, {len(validation[0])} to end it, {len(held_out[0])} "
        "for sets or intervals"
    )
    outputs = len(table.classes) or 2  # mean and noise scale
    with _seeded(settings.seed):
        net = MLP(len(inputs.encoder.features), hidden, outputs)
        model = variational(net, likelihood=_likelihood(table.classes))
    sizes = (len(inputs.encoder.features), *hidden, outputs)
    note(f"network: MLP {'-'.join(map(str, sizes))}")
    _fit(model, train, validation, settings, standardise=True)
    return _calibrated(FileModel(model, inputs, target, settings.seed), validation, held_out, note)


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

    Raises:
        ValueError: If files can't be assigned to classes, or can't be read.
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
    with _seeded(settings.seed):
        net = ResNet18(len(classes), width=width)
        model = variational(net, likelihood=_likelihood(classes))
    note(f"network: ResNet18 of width {width}, images of {size} x {size} pixels")
    _fit(model, train, validation, settings)
    inputs = ImageInputs(size, size, train.mean, train.std)
    return _calibrated(FileModel(model, inputs, "label", settings.seed), validation, held_out, note)


def _rows(groups: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], ...]:
    """Return the rows for training, for validation, and for sets or intervals.

    None are held out for sets or intervals if a quarter of the rows is too few for a level of 0.9.
    """
    every, count = np.arange(len(groups)), len(groups)
    held_out = np.zeros(count, dtype=bool)
    if count // 4 >= NEEDED:
        held_out = stratified(groups, min(SHARE, MOST_SCORES / count), LEAST, seed)
    rest = every[~held_out]
    share = SHARE * count / len(rest)  # of the rest, equal to a tenth of all rows
    validation = stratified(groups[rest], share, LEAST, seed)
    return rest[~validation], rest[validation], every[held_out]


def _encoded(inputs: TableInputs, columns: dict[str, NDArray[Any]]) -> Tensor:
    """Return all rows as numbers, encoded in blocks: categories take far more memory before."""
    count = len(next(iter(columns.values())))
    result = torch.empty(count, len(inputs.encoder.features))
    for start in range(0, count, BLOCK):
        block = {name: column[start : start + BLOCK] for name, column in columns.items()}
        result[start : start + BLOCK] = inputs.encoded(block)
    return result


def _likelihood(classes: Sequence[str]) -> Likelihood:
    return Categorical(class_names=list(classes)) if classes else HeteroscedasticStudentT()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator, and restore it afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _fit(
    model: Variational,
    train: Any,
    validation: Any,
    settings: Settings,
    standardise: bool | None = None,
) -> None:
    try:
        fit(
            model, train, validation, epochs=settings.epochs, lr=settings.lr, seed=settings.seed,
            standardise=standardise, checkpoint=settings.checkpoint, progress=settings.progress,
        )  # fmt: skip
    except TrainingDivergedError:
        if settings.checkpoint is not None:  # another learning rate is another run
            shutil.rmtree(settings.checkpoint, ignore_errors=True)
        raise


def _calibrated(found: FileModel, validation: Any, held_out: Any, note: Note) -> FileModel:
    """Set the temperature of a classifier, and what decides sets, intervals and foreign inputs."""
    if found.task == "classification":
        generator = torch.Generator().manual_seed(found.seed)
        calibrate(found.model, validation, samples=SAMPLES, generator=generator)
    inputs, targets = _pair(held_out)
    scores = None
    if len(targets):
        prediction = found.predict(inputs)
        scores = nonconformity(prediction, targets)
        shown = prediction.scores(targets)
        names = ("accuracy", "nll") if found.classes else ("rmse", "nll")
        results = ", ".join(f"{name} {shown[name]:.4g}" for name in names)
        note(f"on {len(targets)} held-out examples: {results}")
    else:
        note(
            "too few examples to hold some out for sets or intervals: theirs are those of the "
            "model, without a guarantee"
        )
        prediction = found.predict(_pair(validation)[0])
    ordered = epistemic(prediction).cpu().double().sort().values
    largest = ordered[math.ceil(QUANTILE * len(ordered)) - 1].item()
    return replace(found, scores=scores, foreign=largest)


def _pair(data: Any) -> tuple[Any, Tensor]:
    return (data, data.targets) if isinstance(data, Images) else data
