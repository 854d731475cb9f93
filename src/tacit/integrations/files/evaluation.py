"""Metrics of a model on the examples of a file, collected in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tacit.inference.prediction_sets import PredictionIntervals
from tacit.integrations.files.examples import read_examples
from tacit.integrations.files.model import FileModel
from tacit.integrations.files.prediction import foreign_reasons
from tacit.integrations.files.training_table import Note
from tacit.likelihood.predictive import ClassPredictive
from tacit.metrics import Metrics, Streaming


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Result of `evaluate_file`.

    Attributes:
        metrics: Those of `tacit.evaluate`; coverage and mean size of the sets, or mean width of the
            intervals, at `level`; and the share of foreign examples.
        level: Level of sets and intervals.
        targets: Targets of the examples, (B,).
        log_probs: For classes: log-probabilities, (B, C).
        mean: For numbers: predicted means, (B,).
        ranks: For numbers: probability, by the prediction, of smaller targets, (B,).

    Examples:
        >>> import torch
        >>> from tacit.metrics import Metrics
        >>> found = Evaluation(Metrics(nll=0.3), 0.9, targets=torch.tensor([0, 1]))
        >>> found.metrics["nll"], found.level
        (0.3, 0.9)
    """

    metrics: Metrics
    level: float
    targets: Tensor
    log_probs: Tensor | None = None
    mean: Tensor | None = None
    ranks: Tensor | None = None


def evaluate_file(
    model: FileModel,
    path: str | Path,
    *,
    level: float = 0.9,
    skip_broken: bool = False,
    note: Note = lambda text: None,
) -> Evaluation:
    """Return the metrics of a model on a table with the target, or on images in folders.

    Args:
        model: A trained model.
        path: File or folder of the examples; of a folder with splits, the test images are used.
        level: Probability with which sets and intervals contain the target.
        skip_broken: Whether to leave out image files that can't be read.
        note: Receives remarks.

    Raises:
        ValueError: If the examples don't fit the model.

    Examples:
        >>> import pandas, tempfile
        >>> from tacit.integrations.files import Settings, train_table
        >>> table = pandas.DataFrame({"size": range(90), "large": 46 * ["no"] + 44 * ["yes"]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "homes.csv"
        ...     table.to_csv(path, index=False)
        ...     model = train_table(path, "large", settings=Settings(epochs=5, progress=False))
        ...     found = evaluate_file(model, path, level=0.8)  # better on rows of another file
        >>> [name for name in found.metrics if "set" in name]
        ['set_coverage_80', 'mean_set_size']
    """
    streaming = Streaming()
    kept: dict[str, list[Tensor]] = {}
    inside = size = foreign = 0.0
    for examples in read_examples(model, path, labelled=True, skip_broken=skip_broken, note=note):
        targets = examples.targets
        assert targets is not None
        prediction = model.predict(examples.inputs)
        streaming.update(prediction.errors(targets), prediction.sums(targets))
        regions = model.regions(prediction, level)
        inside += regions.coverage(targets) * len(targets)
        sizes = regions.width if isinstance(regions, PredictionIntervals) else regions.size
        size += sizes.double().sum().item()
        reasons = foreign_reasons(examples, model.is_uncertain(prediction))
        foreign += sum(map(bool, reasons))
        if isinstance(prediction, ClassPredictive):
            found = {"log_probs": prediction.log_probs}
        else:
            found = {"mean": prediction.mean.flatten(), "ranks": prediction.cdf(targets).flatten()}
        for name, values in {"targets": targets, **found}.items():
            kept.setdefault(name, []).append(values)
    if not kept:
        raise ValueError(f"{path} has no rows to evaluate.")
    tensors = {name: torch.cat(parts) for name, parts in kept.items()}
    count, what = len(tensors["targets"]), "set" if model.classes else "interval"
    metrics = streaming.compute(model.classes or None)
    metrics[f"{what}_coverage_{100 * level:g}"] = inside / count
    metrics[f"mean_{what}_{'size' if model.classes else 'width'}"] = size / count
    metrics["foreign"] = foreign / count
    return Evaluation(metrics, level, **tensors)
