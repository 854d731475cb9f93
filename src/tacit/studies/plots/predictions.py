"""Pictures of predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit import metrics
from tacit._support.figures import saved
from tacit.likelihood.predictive import ClassPredictive, RegressionPredictive


def plot_reliability(
    predictions: Mapping[str, ClassPredictive] | ClassPredictive,
    labels: Tensor,
    path: str | Path | None = None,
    *,
    bins: int = 10,
) -> Any:
    """Draw accuracy against confidence, a panel per method; on the diagonal they agree.

    Args:
        predictions: By the method's name, or a single one.
        labels: What the examples are.
        path: File to write, if any.
        bins: Number of bars.
    """
    predictions = _named(predictions, labels)
    figure, axes = _panels(len(predictions))
    for axis, (name, prediction) in zip(axes, predictions.items(), strict=True):
        found = metrics.reliability(prediction.confidence, prediction.label == labels, bins)
        shares = (found.size / found.size.sum()).tolist()
        for i, (share, height) in enumerate(zip(shares, found.accuracy.tolist(), strict=True)):
            if share:
                middle, alpha = (i + 0.5) / bins, 0.3 + 0.7 * share
                axis.bar(middle, height, 0.9 / bins, color="tab:blue", alpha=alpha)
        axis.plot([0, 1], [0, 1], "--", color="black", linewidth=1)
        axis.set(xlim=(0, 1), ylim=(0, 1), title=name, xlabel="confidence")
    axes[0].set_ylabel("accuracy")
    return saved(figure, path)


def plot_confidence(
    predictions: Mapping[str, ClassPredictive] | ClassPredictive,
    labels: Tensor,
    path: str | Path | None = None,
) -> Any:
    """Draw how confident right and wrong predictions were, a panel per method.

    Args:
        predictions: By the method's name, or a single one.
        labels: What the examples are.
        path: File to write, if any.
    """
    predictions = _named(predictions, labels)
    figure, axes = _panels(len(predictions))
    for axis, (name, prediction) in zip(axes, predictions.items(), strict=True):
        right = prediction.label == labels
        for mask, color, label in ((right, "tab:green", "right"), (~right, "tab:red", "wrong")):
            values = prediction.confidence[mask].tolist()
            weights = [100 / max(1, len(values))] * len(values)
            axis.hist(values, bins=20, range=(0, 1), weights=weights, color=color, alpha=0.6,
                      label=f"{label} ({len(values)})")  # fmt: skip
        axis.set(title=name, xlabel="confidence")
        axis.legend(fontsize="small")
    axes[0].set_ylabel("share in %")
    return saved(figure, path)


def plot_rejection(
    predictions: Mapping[str, ClassPredictive] | ClassPredictive,
    labels: Tensor,
    path: str | Path | None = None,
) -> Any:
    """Draw the accuracy on what is left when the least confident predictions are rejected.

    Args:
        predictions: By the method's name, or a single one.
        labels: What the examples are.
        path: File to write, if any.
    """
    predictions = _named(predictions, labels)
    figure, axes = _panels(1)
    for name, prediction in predictions.items():
        accuracy = metrics.selective_accuracy(prediction.confidence, prediction.label == labels)
        rejected = 100 * (1 - torch.arange(1, len(accuracy) + 1) / len(accuracy))
        shown = slice(max(1, len(accuracy) // 10), None)
        axes[0].plot(rejected[shown].tolist(), accuracy[shown].tolist(), label=name)
    axes[0].set(xlabel="rejected, % (the least confident first)", ylabel="accuracy on the rest")
    axes[0].legend(fontsize="small")
    return saved(figure, path)


def plot_entropy(
    predictions: Mapping[str, Mapping[str, ClassPredictive]], path: str | Path | None = None
) -> Any:
    """Draw the entropy of predictions for several kinds of inputs, a panel per method.

    Args:
        predictions: By the method's name, then by the kind of input.
        path: File to write, if any.
    """
    figure, axes = _panels(len(predictions))
    for axis, (name, by_input) in zip(axes, predictions.items(), strict=True):
        for kind, prediction in by_input.items():
            values = prediction.entropy.tolist()
            largest = math.log(prediction.logits.shape[-1])
            axis.hist(
                values,
                bins=30,
                range=(0, 1.05 * largest),
                density=True,
                histtype="step",
                label=kind,
            )
        axis.set(title=name, xlabel="entropy")
        axis.legend(fontsize="small")
    axes[0].set_ylabel("density")
    return saved(figure, path)


def plot_images(
    pictures: Tensor,
    prediction: ClassPredictive,
    labels: Tensor,
    count: int = 8,
    path: str | Path | None = None,
) -> Any:
    """Draw the images with the most certain and with the least certain predictions.

    Args:
        pictures: Grey images (B, H, W), or images (B, C, H, W).
        prediction: Predictions for them.
        labels: What they are.
        count: How many of each.
        path: File to write, if any.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    count = min(count, len(prediction))
    axes = figure.subplots(2, count, squeeze=False)
    order = prediction.entropy.argsort()
    for row, chosen, title in (
        (axes[0], order[:count], "most certain"), (axes[1], order.flip(0)[:count], "least certain"),
    ):  # fmt: skip
        for axis, i in zip(row, chosen.tolist(), strict=True):
            picture = pictures[i].cpu()
            picture = picture.movedim(0, -1).squeeze(-1) if picture.ndim == 3 else picture
            axis.imshow(picture.numpy(), cmap="gray_r")
            found, truth = prediction.label[i].item(), labels[i].item()
            color = "tab:green" if found == truth else "tab:red"
            text = f"{found} ({prediction.confidence[i]:.0%})"
            axis.set_title(text, fontsize=9, color=color)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(title, fontsize=9)
    return saved(figure, path)


def plot_fan(
    grid: Tensor,
    prediction: RegressionPredictive,
    functions: Tensor,
    x: Tensor,
    y: Tensor,
    path: str | Path | None = None,
) -> Any:
    """Draw functions of one input with their central 90 % interval and the data.

    Args:
        grid: Inputs, (B,).
        prediction: Predictions for them, (B,).
        functions: A few functions at these inputs, (M, B).
        x: Inputs of the data, (N,).
        y: Targets of the data, (N,).
        path: File to write, if any.
    """
    figure, axes = _panels(1)
    low, high = prediction.interval(0.9)
    inputs = grid.tolist()
    axes[0].fill_between(inputs, low.tolist(), high.tolist(), color="tab:blue", alpha=0.2)
    for function in functions:
        axes[0].plot(inputs, function.tolist(), color="tab:blue", linewidth=0.5, alpha=0.6)
    axes[0].plot(inputs, prediction.mean.tolist(), color="black", linewidth=1.5)
    axes[0].plot(x.tolist(), y.tolist(), ".", color="tab:orange", markersize=4)
    axes[0].set(xlabel="x", ylabel="y")
    return saved(figure, path)


def _named(
    predictions: Mapping[str, ClassPredictive] | ClassPredictive, labels: Tensor
) -> Mapping[str, ClassPredictive]:
    """Return predictions by name, if they are predicted classes, one for each label."""
    named = {"": predictions} if isinstance(predictions, ClassPredictive) else predictions
    for name, prediction in named.items():
        if not isinstance(prediction, ClassPredictive) or len(prediction) != len(labels):
            raise ValueError(
                f"plot: expected predicted classes for {len(labels)} examples"
                f"{f' from {name}' if name else ''}, received {prediction!r}."
            )
    return named


def _panels(count: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    width = 4.5 if count > 1 else 7
    figure = Figure(figsize=(width * count, 3.4), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]
