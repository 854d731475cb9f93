"""Likelihood of class labels."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit._support import checks
from tacit.likelihood.base import aligned
from tacit.likelihood.discrete import DiscreteLikelihood, Scope, check_scope, scaled_logits
from tacit.likelihood.predictive import Averaging, ClassPredictive, check_labels, check_names
from tacit.metrics.arguments import as_tensor

NOUNS = {
    "class_names": "names",
    "class_weights": "weights",
    "temperature": "temperatures",
    "offset": "offsets",
}


class Categorical(DiscreteLikelihood):
    """One of C classes; the outputs are logits, (..., C).

    The loss is the cross-entropy; targets are labels from 0 to C - 1, (B,) or (B, 1). A temperature
    T, set by `tacit.calibrate`, divides the logits of predictions: T > 1 lowers confidence.

    Args:
        class_names: Names of the classes; numbers become strings.
        class_weights: Weights of the classes in the loss, which is a weighted mean, as in torch.
        label_smoothing: Probability mass of each target that is spread uniformly over all classes.
        averaging: How the predictions of several functions are combined: "probs" (the
            mixture), "log_probs" (the paper's choice) or "logits".

    Examples:
        >>> import torch
        >>> likelihood = Categorical(class_names=["cat", "dog"])
        >>> likelihood.loss(torch.zeros(8, 3, 2), torch.tensor([0, 1, 1]))  # 8 samples
        tensor(0.6931)
        >>> likelihood.predictive(torch.tensor([[[0.0, 3.0]]])).label_names
        ['dog']
    """

    offset: Tensor
    class_weights: Tensor | None

    def __init__(
        self,
        class_names: Sequence[str] | Sequence[int] | None = None,
        *,
        class_weights: Sequence[float] | Tensor | None = None,
        label_smoothing: float = 0.0,
        averaging: Averaging = "probs",
    ) -> None:
        super().__init__(averaging)
        self.class_names = None if class_names is None else check_names(class_names)
        self.label_smoothing = _smoothing(label_smoothing)
        weights = None if class_weights is None else _weights(class_weights)
        self.register_buffer("class_weights", weights)
        self.register_buffer("offset", torch.zeros(()))

    def loss(self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None) -> Tensor:
        outputs, targets = aligned("Categorical", outputs, targets, event=1, samples=samples)
        check_labels(targets, outputs.shape[-1])
        weights = self.class_weights
        if weights is not None:
            _check_weights(weights, targets, outputs.shape[-1])
        return F.cross_entropy(
            outputs.flatten(0, -2),
            targets.long().expand(outputs.shape[:-1]).flatten(),
            weight=None if weights is None else weights.to(outputs.dtype),
            label_smoothing=self.label_smoothing,
        )

    def predictive(self, outputs: Tensor) -> ClassPredictive:
        """Return the predictive distribution from the outputs of M functions.

        Args:
            outputs: Logits, (M, B, C), or (M, B, D, C) for D labels per example. Logits of images,
                (M, B, H, W, C), need `class_names`, which fix C: otherwise they could be
                (M, B, C, H, W).

        Raises:
            ValueError: If the last dimension is not, or may not be, the class dimension.
        """
        self._check_classes_last(outputs)
        scaled = scaled_logits(outputs, self.temperature, self.scope, self.offset)
        return ClassPredictive(scaled, self.averaging, self.class_names, self.recalibration)

    def check_layout(self, outputs: Tensor) -> None:
        """Raise ValueError if the class dimension of the outputs is ambiguous.

        The shape of targets determines it. Without targets, several labels per example need
        `class_names` or another setting with one entry per class, to distinguish (M, B, D, C) from
        torch's order (M, B, C, D).

        Args:
            outputs: Logits of M functions, (M, B, C) or (M, B, D, C).
        """
        if outputs.ndim == 4 and not self._classes():
            raise ValueError(
                "Categorical: expected logits with classes last, received outputs of shape "
                f"{tuple(outputs.shape)}, samples and batch first, where either of the other "
                "dimensions may be the class dimension. Name the classes to resolve this: for the "
                f"last, Categorical(class_names=range({outputs.shape[-1]}))."
            )

    def set_temperature(
        self, temperature: float | Tensor, scope: Scope = "logits", offset: float | Tensor = 0.0
    ) -> None:
        """Set the temperature of predictions and the offset added to the logits.

        Args:
            temperature: One temperature, or one per class, (C,).
            scope: What the temperature divides.
            offset: Offset of each class, (C,), or one for all.
        """
        temperatures = as_tensor("temperature", temperature).to(self.temperature)
        for value in temperatures.flatten().tolist():
            checks.positive_number("temperature", value)
        offsets = as_tensor("offset", offset).to(self.offset)
        if temperatures.ndim > 1 or offsets.ndim > 1:
            raise ValueError(
                "set_temperature: expected one temperature and offset, or one per class, (C,); "
                f"received shapes {tuple(temperatures.shape)} and {tuple(offsets.shape)}."
            )
        if not offsets.isfinite().all():
            raise ValueError(f"offset: expected finite values, received {offset!r}.")
        self.temperature, self.scope, self.offset = temperatures, check_scope(scope), offsets
        self.set_recalibration(None)

    def as_classes(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        outputs, targets = aligned("calibrate", outputs, targets, event=1, samples=True)
        return outputs.flatten(1, -2), targets.flatten()

    def _check_classes_last(self, outputs: Tensor) -> None:
        shape, last = tuple(outputs.shape), outputs.shape[-1] if outputs.ndim else 0
        move = "Let the network return classes last: logits.movedim(1, -1)."
        known = self._classes()
        for name, classes in known.items():
            if classes != last:
                first = f" {move}" if len(shape) > 3 and shape[2] == classes else ""
                raise ValueError(
                    f"{name}: expected {last} {NOUNS[name]}, received {classes}; the outputs have "
                    f"the shape {shape}.{first}"
                )
        if len(shape) > 4 and (not known or shape[2] == last):
            raise ValueError(
                "Categorical: expected logits of shape (samples, batch, classes) or (samples, "
                f"batch, positions, classes), received {shape}, where the classes may be in "
                f"a dimension other than the last. {move} Then name the classes, "
                "Categorical(class_names), or flatten the positions: logits.flatten(1, -2)."
            )

    def _classes(self) -> dict[str, int]:
        """Return the number of classes by the setting that determines it."""
        found = {"class_names": self.class_names, "class_weights": self.class_weights}
        sizes = {name: len(value) for name, value in found.items() if value is not None}
        vectors = {"temperature": self.temperature, "offset": self.offset}
        return sizes | {name: len(value) for name, value in vectors.items() if value.ndim}

    def extra_repr(self) -> str:
        if self.temperature.ndim:
            return "temperature=per class"
        return f"temperature={self.temperature.item():.4g}"


def _smoothing(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError(
            f"label_smoothing: expected a number from 0 to below 1, received {given!r}."
        )
    if not 0 <= float(given) < 1:
        raise ValueError(
            f"label_smoothing: expected a number from 0 to below 1, received {given!r}."
        )
    return float(given)


def _check_weights(weights: Tensor, labels: Tensor, classes: int) -> None:
    """Raise ValueError unless the weights fit the classes, and the weighted mean exists."""
    if len(weights) != classes:
        raise ValueError(f"class_weights: expected {classes} weights, received {len(weights)}.")
    if labels.numel() and not weights[labels.long()].any():
        raise ValueError(
            "class_weights: all targets of a batch are of classes with weight 0, so their weighted "
            "mean is undefined. Use larger batches, or leave these examples out of the data."
        )


def _weights(given: Sequence[float] | Tensor) -> Tensor:
    weights = as_tensor("class_weights", given).to(torch.get_default_dtype())
    if weights.ndim != 1:
        raise ValueError(
            f"class_weights: expected one weight per class, (C,), received {tuple(weights.shape)}."
        )
    if not (weights.isfinite().all() and (weights >= 0).all() and weights.sum() > 0):
        raise ValueError(
            "class_weights: expected finite weights of at least 0, not all of them 0; received "
            f"{weights.tolist()}."
        )
    return weights
