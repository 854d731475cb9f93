"""Plots of predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit import metrics
from tacit._support import checks
from tacit._support.figures import saved
from tacit.data.batches import as_tensor
from tacit.likelihood.predictive import ClassPredictive, RegressionPredictive
from tacit.metrics.arguments import Values
from tacit.studies.plots.arguments import (
    AnyClasses,
    check_kind,
    check_shape,
    checked,
    mapping,
    panels,
    without_column,
)


def plot_reliability(
    predictions: Mapping[str, AnyClasses] | AnyClasses,
    labels: Values,
    path: str | Path | None = None,
    *,
    bins: int = 10,
) -> Any:
    """Plot accuracy against confidence, one panel per method.

    On the diagonal, predictions are calibrated. Darker bars contain more predictions.

    Args:
        predictions: Predictions by name of the method, or a single prediction.
        labels: True classes, (B,), or of several labels per example (B, ...).
        path: File to write, if any.
        bins: Number of confidence bins.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If these are not class predictions and integer labels.
        ValueError: If there are none, or their numbers differ.

    Examples:
        >>> import tacit, torch
        >>> x, labels = torch.randn(200, 4), torch.randint(3, (200,))
        >>> model = tacit.variational(torch.nn.Linear(4, 3), likelihood=tacit.Categorical())
        >>> figure = plot_reliability(tacit.predict(model, x), labels)
        >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
        ('confidence', 'accuracy')
    """
    bins = checks.positive_integer("bins", bins)
    predictions, labels = checked("plot_reliability", predictions, labels)
    figure, axes = panels(len(predictions))
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
    predictions: Mapping[str, AnyClasses] | AnyClasses,
    labels: Values,
    path: str | Path | None = None,
) -> Any:
    """Plot histograms of the confidence of correct and of wrong predictions, one panel per method.

    Args:
        predictions: Predictions by name of the method, or a single prediction.
        labels: True classes, (B,), or of several labels per example (B, ...).
        path: File to write, if any.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If these are not class predictions and integer labels.
        ValueError: If there are none, or their numbers differ.

    Examples:
        >>> import tacit, torch
        >>> x, labels = torch.randn(200, 4), torch.randint(3, (200,))
        >>> model = tacit.variational(torch.nn.Linear(4, 3), likelihood=tacit.Categorical())
        >>> figure = plot_confidence({"untrained": tacit.predict(model, x)}, labels)
        >>> figure.axes[0].get_title()
        'untrained'
    """
    predictions, labels = checked("plot_confidence", predictions, labels)
    figure, axes = panels(len(predictions))
    for axis, (name, prediction) in zip(axes, predictions.items(), strict=True):
        correct = prediction.label == labels
        for mask, color, label in (
            (correct, "tab:green", "correct"),
            (~correct, "tab:red", "wrong"),
        ):
            values = prediction.confidence[mask].tolist()
            weights = [100 / max(1, len(values))] * len(values)
            axis.hist(values, bins=20, range=(0, 1), weights=weights, color=color, alpha=0.6,
                      label=f"{label} ({len(values)})")  # fmt: skip
        axis.set(title=name, xlabel="confidence")
        axis.legend(fontsize="small")
    axes[0].set_ylabel("share, %")
    return saved(figure, path)


def plot_rejection(
    predictions: Mapping[str, AnyClasses] | AnyClasses,
    labels: Values,
    path: str | Path | None = None,
) -> Any:
    """Plot the accuracy of the remaining predictions as the least confident ones are rejected.

    Args:
        predictions: Predictions by name of the method, or a single prediction.
        labels: True classes, (B,), or of several labels per example (B, ...).
        path: File to write, if any.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If these are not class predictions and integer labels.
        ValueError: If there are none, or their numbers differ.

    Examples:
        >>> import tacit, torch
        >>> x, labels = torch.randn(200, 4), torch.randint(3, (200,))
        >>> model = tacit.variational(torch.nn.Linear(4, 3), likelihood=tacit.Categorical())
        >>> figure = plot_rejection(tacit.predict(model, x), labels)
        >>> figure.axes[0].get_xlabel()
        'rejected, % (least confident first)'
    """
    predictions, labels = checked("plot_rejection", predictions, labels)
    figure, axes = panels(1)
    for name, prediction in predictions.items():
        accuracy = metrics.selective_accuracy(prediction.confidence, prediction.label == labels)
        rejected = 100 * (1 - torch.arange(1, len(accuracy) + 1) / len(accuracy))
        shown = slice(max(1, len(accuracy) // 10), None)
        axes[0].plot(rejected[shown].tolist(), accuracy[shown].tolist(), label=name)
    axes[0].set(xlabel="rejected, % (least confident first)", ylabel="accuracy of the rest")
    if any(predictions):  # a single prediction has no name
        axes[0].legend(fontsize="small")
    return saved(figure, path)


def plot_entropy(
    predictions: Mapping[str, Mapping[str, ClassPredictive]], path: str | Path | None = None
) -> Any:
    """Plot histograms of the entropy of predictions by kind of input, one panel per method.

    Args:
        predictions: Predictions by name of the method, then by kind of input.
        path: File to write, if any.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If these are not class predictions by method and kind of input.
        ValueError: If there are none.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(4, 3), likelihood=tacit.Categorical())
        >>> test, foreign = (tacit.predict(model, torch.randn(200, 4)) for _ in range(2))
        >>> figure = plot_entropy({"tacit": {"test": test, "foreign": foreign}})
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['test', 'foreign']
    """
    for name, by_input in mapping("plot_entropy(predictions)", predictions).items():
        for prediction in mapping(f"plot_entropy({name})", by_input).values():
            check_kind("plot_entropy", prediction, ClassPredictive)
    figure, axes = panels(len(predictions))
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
    """Show the images with the most and with the least certain predictions.

    Args:
        pictures: Images (B, C, H, W), or greyscale images (B, H, W).
        prediction: Predictions for the images.
        labels: True classes (B,).
        count: Number of images per row.
        path: File to write, if any.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If these are not a class prediction and tensors of pictures and labels.
        ValueError: If there is not one picture and one label per prediction.

    Examples:
        >>> import tacit, torch
        >>> pictures, labels = torch.rand(50, 1, 8, 8), torch.randint(10, (50,))
        >>> net = tacit.models.MLP(64, [16], 10)
        >>> prediction = tacit.predict(net, pictures, likelihood=tacit.Categorical())
        >>> len(plot_images(pictures, prediction, labels, count=4).axes)
        8
    """
    from matplotlib.figure import Figure

    _, labels = checked("plot_images", prediction, labels)
    check_shape("plot_images: predictions", prediction.label, (len(labels),))
    pictures = as_tensor("plot_images(pictures)", pictures)
    if pictures.ndim not in (3, 4) or len(pictures) != len(prediction):
        raise ValueError(
            f"plot_images(pictures): expected {len(prediction)} images, (B, C, H, W) or (B, H, W), "
            f"received shape {tuple(pictures.shape)}."
        )
    figure = Figure(figsize=(9, 3), layout="constrained")
    count = min(checks.positive_integer("count", count), len(prediction))
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
    """Plot sampled functions of one input with the predictive mean, 90 % interval and the data.

    Every shape may have a last dimension of 1, as the inputs and outputs of a network have.

    Args:
        grid: Inputs of the predictions (B,).
        prediction: Predictions on the grid (B,).
        functions: A few sampled functions on the grid (M, B).
        x: Inputs of the data (N,).
        y: Targets of the data (N,).
        path: File to write, if any.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If these are not a regression prediction and tensors.
        ValueError: If a shape is wrong.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(tacit.models.MLP(1, [16], 1), likelihood=tacit.Gaussian())
        >>> grid, x = torch.linspace(-2, 2, 50)[:, None], torch.linspace(-1, 1, 20)[:, None]
        >>> functions = model(grid, samples=5).detach()
        >>> figure = plot_fan(grid, tacit.predict(model, grid), functions, x, torch.sin(x))
        >>> len(figure.axes[0].get_lines())  # 5 functions, the mean and the data
        7
    """
    check_kind("plot_fan", prediction, RegressionPredictive)
    vectors = {"grid": grid, "x": x, "y": y}
    grid, x, y = (without_column(as_tensor(f"plot_fan({n})", v), 1) for n, v in vectors.items())
    functions = without_column(as_tensor("plot_fan(functions)", functions), 2)
    mean, low, high = (
        without_column(each, 1) for each in (prediction.mean, *prediction.interval(0.9))
    )
    check_shape("plot_fan(grid)", grid, (grid.numel(),))
    check_shape("plot_fan: predictions", mean, (len(grid),))
    check_shape("plot_fan(functions)", functions, (len(functions), len(grid)))
    check_shape("plot_fan(x)", x, (x.numel(),))
    check_shape("plot_fan(y)", y, (x.numel(),))
    figure, axes = panels(1)
    inputs = grid.tolist()
    axes[0].fill_between(inputs, low.tolist(), high.tolist(), color="tab:blue", alpha=0.2)
    for function in functions:
        axes[0].plot(inputs, function.tolist(), color="tab:blue", linewidth=0.5, alpha=0.6)
    axes[0].plot(inputs, mean.tolist(), color="black", linewidth=1.5)
    axes[0].plot(x.tolist(), y.tolist(), ".", color="tab:orange", markersize=4)
    axes[0].set(xlabel="x", ylabel="y")
    return saved(figure, path)
