"""Pictures of predictions, for pages: each returns a matplotlib figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tacit.predictive import ClassPredictive, RegressionPredictive

BINS = 10


def reliability(predictions: Mapping[str, ClassPredictive], labels: Tensor) -> Any:
    """Draw accuracy against confidence, a panel per method; on the diagonal they agree."""
    figure, axes = _panels(len(predictions))
    edges = torch.linspace(0, 1, BINS + 1)
    for axis, (name, prediction) in zip(axes, predictions.items(), strict=True):
        right = (prediction.label == labels).float()
        bins = (prediction.confidence * BINS).ceil().long().clamp(1, BINS) - 1
        for i in range(BINS):
            inside = bins == i
            if inside.any():
                share = inside.float().mean().item()
                middle, height = (edges[i] + 0.5 / BINS).item(), right[inside].mean().item()
                axis.bar(middle, height, 0.9 / BINS, color="tab:blue", alpha=0.3 + 0.7 * share)
        axis.plot([0, 1], [0, 1], "--", color="black", linewidth=1)
        axis.set(xlim=(0, 1), ylim=(0, 1), title=name, xlabel="confidence")
    axes[0].set_ylabel("accuracy")
    return figure


def confidences(predictions: Mapping[str, ClassPredictive], labels: Tensor) -> Any:
    """Draw how confident right and wrong predictions were, a panel per method."""
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
    return figure


def rejection(predictions: Mapping[str, ClassPredictive], labels: Tensor) -> Any:
    """Draw the accuracy on what is left when the least certain predictions are rejected."""
    figure, axes = _panels(1)
    for name, prediction in predictions.items():
        order = prediction.entropy.argsort()
        right = (prediction.label == labels).double()[order]
        kept = torch.arange(1, len(right) + 1)
        accuracy = right.cumsum(0) / kept
        rejected = 100 * (1 - kept / len(right))
        shown = slice(max(1, len(right) // 10), None)
        axes[0].plot(rejected[shown].tolist(), accuracy[shown].tolist(), label=name)
    axes[0].set(xlabel="rejected, % (the most uncertain first)", ylabel="accuracy on the rest")
    axes[0].legend(fontsize="small")
    return figure


def entropies(predictions: Mapping[str, Mapping[str, ClassPredictive]]) -> Any:
    """Draw the entropy of predictions for several kinds of inputs, a panel per method."""
    figure, axes = _panels(len(predictions))
    for axis, (name, by_input) in zip(axes, predictions.items(), strict=True):
        for kind, prediction in by_input.items():
            values = prediction.entropy.tolist()
            axis.hist(values, bins=30, range=(0, 2.4), density=True, histtype="step", label=kind)
        axis.set(title=name, xlabel="entropy")
        axis.legend(fontsize="small")
    axes[0].set_ylabel("density")
    return figure


def images(pictures: Tensor, prediction: ClassPredictive, labels: Tensor, count: int = 8) -> Any:
    """Draw the images with the most certain and with the least certain predictions.

    Args:
        pictures: Grey images, (B, height, width).
        prediction: Predictions for them.
        labels: What they are.
        count: How many of each.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots(2, count)
    order = prediction.entropy.argsort()
    for row, chosen, title in (
        (axes[0], order[:count], "most certain"), (axes[1], order.flip(0)[:count], "least certain"),
    ):  # fmt: skip
        for axis, i in zip(row, chosen.tolist(), strict=True):
            axis.imshow(pictures[i].numpy(), cmap="gray_r")
            found, truth = prediction.label[i].item(), labels[i].item()
            color = "tab:green" if found == truth else "tab:red"
            text = f"{found} ({prediction.confidence[i]:.0%})"
            axis.set_title(text, fontsize=9, color=color)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(title, fontsize=9)
    return figure


def fan(
    grid: Tensor, prediction: RegressionPredictive, functions: Tensor, x: Tensor, y: Tensor
) -> Any:
    """Draw functions of one input with their central 90 % interval and the data.

    Args:
        grid: Inputs, (B,).
        prediction: Predictions for them, (B,).
        functions: A few functions at these inputs, (M, B).
        x: Inputs of the data, (N,).
        y: Targets of the data, (N,).
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
    return figure


def _panels(count: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    width = 4.5 if count > 1 else 7
    figure = Figure(figsize=(width * count, 3.4), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]
