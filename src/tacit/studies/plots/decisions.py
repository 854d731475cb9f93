"""Plots of prediction sets and of abstention."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tacit import metrics
from tacit._support.figures import saved
from tacit.inference.prediction_sets import PredictionSets, whole_labels
from tacit.likelihood.predictive import ClassPredictive, check_labels, counted
from tacit.likelihood.predictive.abstention import Abstention
from tacit.metrics.arguments import Values
from tacit.studies.plots.arguments import AnyClasses, check_shape, checked, panels


def plot_set_sizes(sets: PredictionSets, labels: Values, path: str | Path | None = None) -> Any:
    """Plot the sizes of conformal prediction sets, and the coverage of the sets of each size.

    The dashed line is the level that holds on average. Small sets whose coverage is far below it
    look more certain than they are; bars of few sets vary by chance.

    Args:
        sets: Sets of classes from `tacit.conformal`.
        labels: True classes, one for each set.
        path: File to write, if any.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If these are not prediction sets.
        ValueError: If there are none, or there is not one label per set.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(4, 3), likelihood=tacit.Categorical())
        >>> x, labels = torch.randn(400, 4), torch.randint(3, (400,))
        >>> sets = tacit.conformal(tacit.predict(model, x[:200]), labels[:200], level=0.9)
        >>> figure = plot_set_sizes(sets(tacit.predict(model, x[200:])), labels[200:])
        >>> [axis.get_ylabel() for axis in figure.axes]
        ['share of sets, %', 'coverage']
    """
    if not isinstance(sets, PredictionSets):
        raise TypeError(
            "plot_set_sizes: expected sets of classes from tacit.conformal, received "
            f"{type(sets).__name__}."
        )
    truth = whole_labels(labels).to(sets.members.device)
    check_shape("plot_set_sizes(labels)", truth, tuple(sets.members.shape[:-1]))
    if not truth.numel():
        raise ValueError("plot_set_sizes: expected at least one set, received none.")
    check_labels(truth, sets.members.shape[-1], sets.ignore_index)
    kept = counted(truth, sets.ignore_index)
    inside = sets.members[kept].gather(-1, truth[kept][:, None])[:, 0].double().cpu()
    sizes = sets.size[kept].cpu()
    if not len(sizes):
        raise ValueError("plot_set_sizes: all labels are ignored.")
    counts = sizes.bincount()
    shown = counts.nonzero().flatten()
    covered = sizes.bincount(inside)[shown] / counts[shown]
    figure, (left, right) = panels(2)
    left.bar(shown.tolist(), (100 * counts[shown] / len(sizes)).tolist(), color="tab:blue")
    left.set(xlabel="classes in the set", ylabel="share of sets, %")
    right.bar(shown.tolist(), covered.tolist(), color="tab:blue")
    right.axhline(sets.level, linestyle="--", color="black", linewidth=1)
    right.set(xlabel="classes in the set", ylabel="coverage", ylim=(0, 1))
    for axis in (left, right):
        axis.xaxis.get_major_locator().set_params(integer=True)
    return saved(figure, path)


def plot_risk_coverage(
    predictions: Mapping[str, AnyClasses] | AnyClasses,
    labels: Values,
    path: str | Path | None = None,
    *,
    rule: Mapping[str, Abstention] | Abstention | None = None,
) -> Any:
    """Plot the error rate among the answered predictions against the share that is answered.

    The most confident predictions are answered first. A dot marks a rule's threshold on these
    predictions, a dashed line its bound on the error rate.

    Args:
        predictions: Predictions by name of the method, or a single prediction.
        labels: True classes, (B,), or of several labels per example (B, ...).
        path: File to write, if any.
        rule: Rule from `prediction.select`, made on other data; for several methods one for each,
            by name.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If these are not class predictions, integer labels and rules.
        ValueError: If there are none, their numbers differ, or a rule has no prediction.

    Examples:
        >>> import tacit, torch
        >>> x = torch.randn(400, 2, generator=torch.manual_seed(0))
        >>> labels = x.argmax(1)
        >>> prediction = tacit.predict(torch.nn.Identity(), x, likelihood=tacit.Categorical())
        >>> rule = prediction.select(labels, risk=0.05)
        >>> figure = plot_risk_coverage(prediction, labels, rule=rule)
        >>> figure.axes[0].get_xlabel()
        'coverage: share answered'
    """
    predictions, labels = checked("plot_risk_coverage", predictions, labels)
    rules = _rules(rule, predictions)
    figure, (axis,) = panels(1)
    for name, prediction in predictions.items():
        correct = (prediction.label == labels.to(prediction.label.device)).cpu()
        errors = 1 - metrics.selective_accuracy(prediction.confidence, correct)
        answered = torch.arange(1, len(errors) + 1) / len(errors)
        (line,) = axis.plot(answered.tolist(), errors.tolist(), label=name)
        if own := rules.get(name):
            chosen = own(prediction).cpu()
            error = 1 - correct[chosen].double().mean().item() if chosen.any() else 0.0
            share = chosen.double().mean().item()
            axis.plot([share], [error], "o", color=line.get_color())
            axis.axhline(own.risk, linestyle="--", color=line.get_color(), linewidth=1)
    axis.set(xlim=(0, 1), xlabel="coverage: share answered", ylabel="risk: error rate of answers")
    if any(predictions):  # a single prediction has no name
        axis.legend(fontsize="small")
    return saved(figure, path)


def _rules(rule: Any, predictions: Mapping[str, ClassPredictive]) -> Mapping[str, Abstention]:
    """Return the rules by name of the method."""
    if rule is None:
        return {}
    rules = {next(iter(predictions)): rule} if isinstance(rule, Abstention) else rule
    known = isinstance(rules, Mapping)
    if not known or not all(isinstance(each, Abstention) for each in rules.values()):
        raise TypeError(
            "plot_risk_coverage(rule): expected a rule from prediction.select, or rules by name of "
            f"the method, received {rule!r:.60}."
        )
    if isinstance(rule, Abstention) and len(predictions) > 1:
        raise ValueError(
            "plot_risk_coverage(rule): expected rules by name of the method, since a threshold "
            "fits one method only; received one rule."
        )
    if unknown := [name for name in rules if name not in predictions]:
        raise ValueError(f"plot_risk_coverage(rule): no predictions are named {unknown[0]!r}.")
    return rules
