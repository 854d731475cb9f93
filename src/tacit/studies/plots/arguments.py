"""Arguments of plots: predictions by name of the method, and their targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tacit.data.batches import as_tensor
from tacit.inference.prediction_sets import whole_labels
from tacit.likelihood.predictive import BinaryPredictive, ClassPredictive, Predictive, counted
from tacit.metrics.arguments import Values

AnyClasses: TypeAlias = ClassPredictive | BinaryPredictive


def checked(
    name: str,
    predictions: Mapping[str, AnyClasses] | AnyClasses,
    labels: Values,
) -> tuple[Mapping[str, ClassPredictive], Tensor]:
    """Return predictions of one label each by name of the method, and these labels.

    Several labels of an example become examples, binary targets two classes; labels to be ignored
    are left out.

    Raises:
        TypeError: If these are not class predictions and integer labels.
        ValueError: If there are none, or their numbers differ.
    """
    named = {"": predictions} if isinstance(predictions, Predictive) else predictions
    truth = as_tensor(f"{name}(labels)", labels)
    found: dict[str, ClassPredictive] = {}
    kept = torch.ones((), dtype=torch.bool)
    for method, prediction in mapping(f"{name}(predictions)", named).items():
        source = f" from {method}" if method else ""
        if isinstance(prediction, BinaryPredictive):
            prediction, truth = prediction.two_classes, whole_labels(truth)
        check_kind(name, prediction, ClassPredictive, source)
        if truth.is_floating_point():
            raise TypeError(
                f"{name}(labels): expected integer classes (B, ...), received {truth.dtype}."
            )
        truth = without_column(truth, prediction.label.ndim)
        check_shape(f"{name}: predictions{source}", prediction.label, tuple(truth.shape))
        kept = kept & counted(truth.cpu(), prediction.ignore_index)
        found[method] = replace(prediction, logits=prediction.logits.flatten(1, -2))
    flat = kept.expand(truth.shape).flatten()
    return {method: each[flat] for method, each in found.items()}, truth.flatten()[flat]


def mapping(name: str, given: Any) -> Mapping[str, Any]:
    """Return predictions by name, or raise an error unless there are some."""
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{name}: expected predictions from tacit.predict by name, received "
            f"{type(given).__name__}."
        )
    if not given:
        raise ValueError(f"{name}: expected at least one prediction, received none.")
    return given


def check_kind(name: str, given: Any, kind: type[Predictive], source: str = "") -> None:
    """Raise TypeError unless predictions are of this kind."""
    if not isinstance(given, kind):
        words = "class predictions" if kind is ClassPredictive else "predictions of a regression"
        raise TypeError(
            f"{name}: expected {words} from tacit.predict{source}, received {type(given).__name__}."
        )


def check_shape(name: str, given: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a tensor has this shape."""
    if tuple(given.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape}, received {tuple(given.shape)}.")


def without_column(given: Tensor, dimensions: int) -> Tensor:
    """Return a tensor without a last dimension of 1 in excess of the expected dimensions."""
    return given[..., 0] if given.ndim == dimensions + 1 and given.shape[-1] == 1 else given


def panels(count: int) -> tuple[Any, Any]:
    """Return a figure with panels side by side, and their axes."""
    from matplotlib.figure import Figure

    width = 4.5 if count > 1 else 7
    figure = Figure(figsize=(width * count, 3.4), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]
