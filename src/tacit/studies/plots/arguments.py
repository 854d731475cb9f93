"""Arguments of plots: predictions by name of the method, and their targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tacit.data.batches import as_tensor
from tacit.likelihood.predictive import ClassPredictive, Predictive


def checked(
    name: str, predictions: Mapping[str, ClassPredictive] | ClassPredictive, labels: Tensor
) -> tuple[Mapping[str, ClassPredictive], Tensor]:
    """Return predictions by name of the method, and the labels as a tensor.

    Raises:
        TypeError: If these are not class predictions and integer labels.
        ValueError: If there are none, or their numbers differ.
    """
    named = {"": predictions} if isinstance(predictions, Predictive) else predictions
    labels = as_tensor(f"{name}(labels)", labels)
    if labels.is_floating_point() or labels.ndim != 1:
        raise TypeError(
            f"{name}(labels): expected integer classes (B,), received {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )
    for method, prediction in mapping(f"{name}(predictions)", named).items():
        check_kind(name, prediction, ClassPredictive, f" from {method}" if method else "")
        check_shape(
            f"{name}: predictions{f' from {method}' if method else ''}",
            prediction.label,
            (len(labels),),
        )
    return named, labels


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
