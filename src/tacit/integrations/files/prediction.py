"""Predictions for the examples of a file, written as CSV in chunks: memory is bounded."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from tacit._support.temporary_files import replacing
from tacit.inference.prediction_sets import PredictionSets
from tacit.integrations.files.examples import Examples, read_examples
from tacit.integrations.files.inputs import ImageInputs
from tacit.integrations.files.model import FileModel
from tacit.integrations.files.training_table import Note
from tacit.likelihood.predictive import ClassPredictive

CLASS_COLUMNS = ("label", "probability", "set", "entropy", "foreign")
NUMBER_COLUMNS = ("mean", "std", "low", "high", "foreign")


@dataclass(frozen=True)
class Predicted:
    """What `predict_file` did.

    Attributes:
        count: Number of examples.
        foreign: Number of those that are foreign.

    Examples:
        >>> found = Predicted(count=200, foreign=3)
        >>> f"{found.foreign} of {found.count} rows are unlike the training data"
        '3 of 200 rows are unlike the training data'
    """

    count: int
    foreign: int


def predict_file(
    model: FileModel,
    path: str | Path,
    out: str | Path,
    *,
    level: float = 0.9,
    skip_broken: bool = False,
    note: Note = lambda text: None,
) -> Predicted:
    """Write the predictions for a table, or for images, to a CSV.

    The first column is the line or the file of each example. For classes follow `label`, its
    `probability`, the prediction `set` (classes separated by `|`) and the `entropy`; for numbers
    `mean`, `std` and the interval from `low` to `high`. `foreign` says why an example is unlike the
    training data; it is empty for others.

    Args:
        model: A trained model.
        path: File or folder of the examples.
        out: File to write; replaced only if all predictions succeed.
        level: Probability with which sets and intervals contain the target.
        skip_broken: Whether to leave out image files that can't be read.
        note: Receives remarks.

    Returns:
        The number of examples, and of those that are foreign.

    Raises:
        ValueError: If the examples don't fit the model, or the level needs more held-out examples.

    Examples:
        >>> import pandas, tempfile
        >>> from tacit.integrations.files import Settings, train_table
        >>> table = pandas.DataFrame({"size": range(90), "large": 46 * ["no"] + 44 * ["yes"]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path, out = Path(folder) / "homes.csv", Path(folder) / "predictions.csv"
        ...     table.to_csv(path, index=False)
        ...     model = train_table(path, "large", settings=Settings(epochs=5, progress=False))
        ...     found = predict_file(model, path, out)
        ...     columns = list(pandas.read_csv(out))
        >>> found.count, columns
        (90, ['line', 'label', 'probability', 'set', 'entropy', 'foreign'])
    """
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    name = "file" if isinstance(model.inputs, ImageInputs) else "line"
    columns = CLASS_COLUMNS if model.classes else NUMBER_COLUMNS
    count = foreign = 0
    with replacing(out) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([name, *columns])
        for examples in read_examples(model, path, skip_broken=skip_broken, note=note):
            for row in _rows(model, examples, level):
                writer.writerow(row)
                count, foreign = count + 1, foreign + bool(row[-1])
        if not count:
            raise ValueError(f"{path} has no rows to predict.")
        text.flush()
        text.detach()
    return Predicted(count, foreign)


def _rows(model: FileModel, examples: Examples, level: float) -> Iterator[list[str]]:
    prediction = model.predict(examples.inputs)
    regions = model.regions(prediction, level)
    reasons = foreign_reasons(examples, model.is_uncertain(prediction))
    if isinstance(prediction, ClassPredictive):
        assert isinstance(regions, PredictionSets)
        columns = [
            prediction.label_names,
            _numbers(prediction.confidence),
            ["|".join(names) for names in regions.label_names],
            _numbers(prediction.entropy),
        ]
    else:
        assert not isinstance(regions, PredictionSets)
        found = (prediction.mean, prediction.std, regions.low, regions.high)
        columns = [_numbers(values) for values in found]
    for row in zip(examples.names, *columns, reasons, strict=True):
        yield list(row)


def foreign_reasons(examples: Examples, uncertain: Tensor) -> list[str]:
    """Return why each example is foreign, or "" if it isn't."""
    return [
        "; ".join([*reasons, "uncertainty"] if above else reasons)
        for reasons, above in zip(examples.reasons, uncertain.tolist(), strict=True)
    ]


def _numbers(values: Tensor) -> list[str]:
    return [f"{value:.7g}" for value in values.flatten().tolist()]
