"""Plots of predictions of real targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit._support import checks
from tacit._support.figures import saved
from tacit.likelihood.predictive import Predictive, RegressionPredictive
from tacit.metrics.arguments import Values, as_tensor, between_0_and_1
from tacit.studies.plots.arguments import (
    check_kind,
    check_shape,
    mapping,
    panels,
    without_column,
)

LEVELS = 99  # nominal coverages of the curve


def plot_quantiles(
    prediction: RegressionPredictive,
    x: Values | None = None,
    targets: Values | None = None,
    path: str | Path | None = None,
    *,
    levels: Sequence[float] = (0.5, 0.8, 0.95),
) -> Any:
    """Plot a fan chart: central intervals of several levels over an input or time.

    The line is the median. Dots are the targets.

    Args:
        prediction: One predictive distribution for each x: B examples with one target, or one
            example with B targets, such as the steps of a forecast.
        x: Inputs or times (B,), in any order; 0, 1, 2, ... by default.
        targets: Observed values (B,); NaN where there is none.
        path: File to write, if any.
        levels: Probabilities of the intervals, between 0 and 1.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If this is not a regression prediction.
        ValueError: If there is not one prediction and one target for each x, or a level is not
            between 0 and 1.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(1, 1), likelihood=tacit.Gaussian())
        >>> x = torch.rand(30, 1)
        >>> figure = plot_quantiles(tacit.predict(model, x), x[:, 0], targets=torch.randn(30))
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['95 %', '80 %', '50 %', 'median', 'target']
    """
    from matplotlib import colormaps

    check_kind("plot_quantiles", prediction, RegressionPredictive)
    shape = tuple(prediction.means.shape[1:])
    size = prediction.means[0].numel()
    if size not in shape or not size:
        raise ValueError(
            "plot_quantiles: expected one target for each of B examples, or B targets of one "
            f"example, received predictions of shape {shape}. Select one output, "
            "prediction.output(0), or one example, prediction[0]."
        )
    inputs = torch.arange(size) if x is None else as_tensor("plot_quantiles(x)", x).detach().cpu()
    inputs = without_column(inputs, 1)
    check_shape("plot_quantiles(x)", inputs, (size,))
    ordered = sorted(between_0_and_1("plot_quantiles(levels)", each) for each in levels)[::-1]
    order = inputs.argsort()
    across = inputs[order].tolist()

    def curve(q: float) -> list[float]:
        return prediction.quantile(q).flatten().cpu()[order].tolist()

    figure, (axis,) = panels(1)
    for i, level in enumerate(ordered):  # the widest first, so that narrower ones are on top
        shade = colormaps["Blues"](0.15 + 0.45 * (i + 1) / len(ordered))
        axis.fill_between(
            across, curve((1 - level) / 2), curve((1 + level) / 2), color=shade, linewidth=0,
            label=f"{100 * level:g} %",
        )  # fmt: skip
    axis.plot(across, curve(0.5), color="navy", label="median")
    if targets is not None:
        y = as_tensor("plot_quantiles(targets)", targets).detach().cpu().squeeze()
        check_shape("plot_quantiles(targets)", y.reshape(-1), (size,))
        axis.plot(
            across, y.reshape(-1)[order].tolist(), ".", color="black", markersize=4, label="target"
        )
    axis.set(xlabel="x", ylabel="y")
    axis.legend(fontsize="small")
    return saved(figure, path)


def plot_coverage(
    predictions: Mapping[str, RegressionPredictive] | RegressionPredictive,
    targets: Values,
    path: str | Path | None = None,
    *,
    bins: int = 10,
) -> Any:
    """Plot how reliable a regression is: coverage of intervals, and predicted probabilities.

    The first panel has the share of targets within their central intervals, against the intervals'
    probability. Below the diagonal predictions are too certain. The others are histograms, one per
    method, of the probabilities F(y) of the targets (probability integral transform), which are
    uniform if predictions are calibrated: a U shape means too certain, a slope biased.

    Args:
        predictions: Predictions by name of the method, or a single prediction.
        targets: Observed values, in the shape of the predictions.
        path: File to write, if any.
        bins: Number of bins of the histograms.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If these are not regression predictions.
        ValueError: If there are none, shapes differ, or targets are NaN.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(1, 1), likelihood=tacit.Gaussian())
        >>> x, y = torch.rand(2, 30, 1)
        >>> figure = plot_coverage(tacit.predict(model, x), y)
        >>> [axis.get_ylabel() for axis in figure.axes]
        ['observed coverage', 'density']
    """
    bins = checks.positive_integer("bins", bins)
    named = {"": predictions} if isinstance(predictions, Predictive) else predictions
    found = {
        name: _probabilities(prediction, targets, name)
        for name, prediction in mapping("plot_coverage(predictions)", named).items()
    }
    figure, (curves, *histograms) = panels(1 + len(found))
    nominal = torch.arange(1, LEVELS + 1) / (LEVELS + 1)
    for (name, values), axis in zip(found.items(), histograms, strict=True):
        inside = (2 * values - 1).abs()[:, None] <= nominal
        curves.plot(nominal.tolist(), inside.double().mean(0).tolist(), label=name)
        weights = [bins / len(values)] * len(values)
        axis.hist(values.tolist(), bins=bins, range=(0, 1), weights=weights, color="tab:blue")
        axis.axhline(1, linestyle="--", color="black", linewidth=1)
        axis.set(xlim=(0, 1), title=name, xlabel="predicted probability F(y)", ylabel="density")
    curves.plot([0, 1], [0, 1], "--", color="black", linewidth=1)
    curves.set(xlim=(0, 1), ylim=(0, 1), xlabel="nominal coverage", ylabel="observed coverage")
    if any(found):  # a single prediction has no name
        curves.legend(fontsize="small")
    return saved(figure, path)


def _probabilities(prediction: Any, targets: Values, name: str) -> Tensor:
    """Return F(y) for each target, (N,)."""
    source = f" from {name}" if name else ""
    check_kind("plot_coverage", prediction, RegressionPredictive, source)
    found: Tensor = prediction.cdf(targets).detach().flatten().double().cpu()
    if not found.numel() or found.isnan().any():
        raise ValueError(
            f"plot_coverage: expected targets and predictions{source} without NaN, at least one."
        )
    return found
