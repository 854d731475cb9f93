"""A page about a model on data with known targets: metrics and figures of calibration."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.integrations.files import Evaluation, FileModel
from tacit.likelihood.predictive import ClassPredictive
from tacit.studies import plots
from tacit.studies.estimates import mean_and_error
from tacit.studies.report import Page

MOST_POINTS = 2000  # of a scatter plot


def write_page(path: str | Path, model: FileModel, found: Evaluation, data: str) -> Path:
    """Write the page and return its path.

    Args:
        path: File to write: Markdown if it ends in .md, else HTML.
        model: The model.
        found: Its evaluation.
        data: Name of the data.
    """
    page = Page(f"{model.target}: predictions for {Path(data).name}")
    page.text(conclusions(model, found))
    page.text(
        f"A model for the {model.task} of {model.target} was evaluated on the "
        f"{len(found.targets)} examples of {data}; its {model.describe_regions(found.level)}. "
        "±: standard errors over examples.",
        soft=True,
    )
    rows = [[name, f"{value:.4g}"] for name, value in found.metrics.items()]
    page.table(["metric", "value"], rows)
    page.text(
        "foreign: share of the examples that are unlike the training data. Lower is better for "
        "all other metrics except accuracy and coverage.",
        soft=True,
    )
    if found.log_probs is not None:
        _add_classes(page, model, found.log_probs, found.targets)
    elif found.mean is not None and found.ranks is not None:
        _add_numbers(page, found.mean, found.ranks, found.targets)
    return page.write(path)


def conclusions(model: FileModel, found: Evaluation) -> str:
    """Return three sentences: how good predictions and regions are, and how many are foreign."""
    count, numbers = len(found.targets), found.metrics
    if found.log_probs is not None:
        correct = (found.log_probs.argmax(-1) == found.targets).double()
        mean, error = mean_and_error(100 * correct)
        most = 100 * torch.bincount(found.targets).max().item() / count
        first = (
            f"The model predicts {mean:.1f} ± {error:.1f} % of the {count} examples correctly, "
            f"where the most frequent class alone would give {most:.1f} %."
        )
        what, size = "set", f"{numbers['mean_set_size']:.3g} of {len(model.classes)} classes"
    else:
        assert found.mean is not None
        squared = (found.mean - found.targets.flatten()).double().square()
        mean, error = mean_and_error(squared)
        spread = found.targets.double().std(correction=0).item()
        rmse = math.sqrt(mean)
        first = (
            f"The root mean squared error is {rmse:.3g} ± {error / (2 * rmse or 1):.1g} over "
            f"{count} examples, whose targets have a standard deviation of {spread:.3g}."
        )
        what, size = "interval", f"{numbers['mean_interval_width']:.3g} wide"
    level = f"{100 * found.level:g}"
    share = numbers[f"{what}_coverage_{level}"]
    error = math.sqrt(share * (1 - share) / count)
    return (
        f"{first} The {what}s for a probability of {level} % contain {100 * share:.1f} ± "
        f"{100 * error:.1f} % of the targets; on average they are {size}. "
        f"{100 * numbers['foreign']:.1f} % of the examples are unlike the training data."
    )


def _add_classes(page: Page, model: FileModel, log_probs: Tensor, labels: Tensor) -> None:
    # Averaged over functions already: the figures need only the probabilities.
    prediction = ClassPredictive(log_probs[None], class_names=model.classes)
    page.heading("Calibration")
    page.figure(
        plots.plot_reliability(prediction, labels),
        "Accuracy against confidence. On the dashed line, predictions with 80 % confidence are "
        "correct 80 % of the time. Darker bars contain more predictions.",
    )
    page.figure(
        plots.plot_confidence(prediction, labels),
        "Confidence of correct and of wrong predictions.",
    )
    page.heading("Selective prediction")
    page.figure(
        plots.plot_rejection(prediction, labels),
        "Accuracy of the remaining predictions when the least confident ones are rejected.",
    )
    page.heading("Classes")
    counts = torch.bincount(labels, minlength=len(model.classes)).tolist()
    correct = torch.bincount(
        labels[prediction.label == labels], minlength=len(model.classes)
    ).tolist()
    rows = [
        [name, str(count), f"{right / count:.1%}" if count else "–"]
        for name, count, right in zip(model.classes, counts, correct, strict=True)
    ]
    page.table(["class", "examples", "predicted correctly"], rows)


def _add_numbers(page: Page, mean: Tensor, ranks: Tensor, targets: Tensor) -> None:
    page.heading("Calibration")
    page.figure(
        plot_coverage(ranks),
        "Share of the targets inside central intervals of the predictive distribution, against "
        "their level. On the dashed line, 80 % intervals contain 80 % of the targets.",
    )
    page.heading("Predictions and targets")
    page.figure(
        plot_targets(mean, targets),
        "Targets against predicted means, of at most 2,000 examples. On the dashed line they are "
        "equal.",
    )


def plot_coverage(ranks: Tensor) -> Any:
    """Plot the coverage of central intervals against their level.

    Args:
        ranks: Predicted probability of targets smaller than the observed ones, (B,).
    """
    figure, axis = _axis("level", "share inside")
    # The smallest central interval around a target has the level |2 u - 1|.
    levels = (2 * ranks - 1).abs().double().sort().values
    shares = torch.arange(1, len(levels) + 1) / len(levels)
    axis.plot([0, *levels.tolist(), 1], [0, *shares.tolist(), 1], color="tab:blue")
    axis.plot([0, 1], [0, 1], "--", color="black", linewidth=1)
    axis.set(xlim=(0, 1), ylim=(0, 1))
    return figure


def plot_targets(mean: Tensor, targets: Tensor) -> Any:
    """Plot targets against predicted means, of examples spread over the data."""
    figure, axis = _axis("predicted mean", "target")
    step = -(-len(mean) // MOST_POINTS)
    axis.plot(mean[::step].tolist(), targets[::step].tolist(), ".", markersize=4)
    ends = [min(mean.min(), targets.min()).item(), max(mean.max(), targets.max()).item()]
    axis.plot(ends, ends, "--", color="black", linewidth=1)
    return figure


def _axis(x: str, y: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axis = figure.subplots()
    axis.set(xlabel=x, ylabel=y)
    return figure, axis
