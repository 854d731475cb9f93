"""Likelihood of class labels."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit._support import checks
from tacit.likelihood.base import aligned
from tacit.likelihood.class_layout import (
    DIMS,
    ambiguous,
    check_class_dim,
    classes_last,
    layout,
    misfit,
)
from tacit.likelihood.discrete import DiscreteLikelihood, Scope, check_scope, scaled_logits
from tacit.likelihood.predictive import (
    Averaging,
    ClassPredictive,
    check_labels,
    check_names,
    counted,
)
from tacit.metrics.arguments import as_tensor

NOUNS = {
    "class_names": "names",
    "class_weights": "weights",
    "temperature": "temperatures",
    "offset": "offsets",
}
IGNORED = -100  # torch's default, which is not a label


class Categorical(DiscreteLikelihood):
    """One of C classes, or one at each position; the outputs are logits, (B, C) or dense.

    Dense outputs, of images or sequences, are (B, C, ...), as for torch's `cross_entropy`, or
    (B, ..., C). The shape of the first targets determines which, and the likelihood remembers it;
    later outputs in the other order are refused. Predictions are always (B, ..., C).

    The loss is the cross-entropy; targets are labels from 0 to C - 1, in the shape of the outputs
    without the class dimension; (B, 1) stands for (B,). A temperature T, set by `tacit.calibrate`,
    divides the logits of predictions: T > 1 lowers confidence.

    Args:
        class_names: Names of the classes; numbers become strings.
        class_weights: Weights of the classes in the loss, which is a weighted mean, as in torch.
        label_smoothing: Probability mass of each target that is spread uniformly over all classes.
        averaging: How the predictions of several functions are combined: "probs" (the
            mixture), "log_probs" (the paper's choice) or "logits".
        class_dim: The class dimension of the network's outputs with the batch first, 1 or -1; None
            for the one that fits the first targets.
        ignore_index: Label of positions without a class, such as -100 or 255: they don't count in
            the loss, in metrics, in calibration and in conformal prediction.

    Examples:
        >>> import torch
        >>> likelihood = Categorical(class_names=["cat", "dog"])
        >>> likelihood.loss(torch.zeros(8, 3, 2), torch.tensor([0, 1, 1]))  # 8 samples
        tensor(0.6931)
        >>> likelihood.predictive(torch.tensor([[[0.0, 3.0]]])).label_names
        ['dog']
        >>> pixels = Categorical(ignore_index=-100)
        >>> pixels.loss(torch.zeros(3, 4, 8, 8), torch.zeros(3, 8, 8).long())  # 4 classes
        tensor(1.3863)
        >>> pixels.predictive(torch.zeros(1, 3, 4, 8, 8)).probs.shape
        torch.Size([3, 8, 8, 4])
    """

    offset: Tensor
    class_weights: Tensor | None
    found_class_dim: Tensor

    def __init__(
        self,
        class_names: Sequence[str] | Sequence[int] | None = None,
        *,
        class_weights: Sequence[float] | Tensor | None = None,
        label_smoothing: float = 0.0,
        averaging: Averaging = "probs",
        class_dim: int | None = None,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(averaging)
        self.class_names = None if class_names is None else check_names(class_names)
        self.label_smoothing = _smoothing(label_smoothing)
        self.class_dim = check_class_dim(class_dim)
        self.ignore_index = _ignored_label(ignore_index)
        weights = None if class_weights is None else _weights(class_weights)
        self.register_buffer("class_weights", weights)
        self.register_buffer("offset", torch.zeros(()))
        # 0 until targets determine it. A buffer, so that checkpoints and files have it.
        self.register_buffer("found_class_dim", torch.zeros((), dtype=torch.int64))

    def loss(self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None) -> Tensor:
        outputs, targets = self._aligned("Categorical", outputs, targets, samples)
        check_labels(targets, outputs.shape[-1], self.ignore_index)
        if self.class_names is not None and len(self.class_names) != outputs.shape[-1]:
            raise ValueError(
                f"class_names: expected {outputs.shape[-1]} names, one for each output of the "
                f"network; received {len(self.class_names)}."
            )
        kept = counted(targets, self.ignore_index)
        if self.ignore_index is not None and not kept.any():
            raise ValueError(
                f"ignore_index: all targets of a batch are {self.ignore_index}, so their mean loss "
                "is undefined. Use larger batches, or leave these examples out of the data."
            )
        weights = self.class_weights
        if weights is not None:
            _check_weights(weights, targets[kept], outputs.shape[-1])
        return F.cross_entropy(
            outputs.flatten(0, -2),
            targets.long().expand(outputs.shape[:-1]).flatten(),
            weight=None if weights is None else weights.to(outputs.dtype),
            ignore_index=IGNORED if self.ignore_index is None else self.ignore_index,
            label_smoothing=self.label_smoothing,
        )

    def find_class_dim(self, outputs: Tensor, targets: Tensor) -> None:
        """Determine the class dimension from the shape of targets, unless it is known.

        Args:
            outputs: Logits of M functions, (M, B, ...).
            targets: Labels, (B, ...).

        Raises:
            ValueError: If outputs and targets don't fit, or fit with both dimensions.
        """
        self._aligned("Categorical", outputs, targets, True)

    def predictive(self, outputs: Tensor) -> ClassPredictive:
        """Return the predictive distribution from the outputs of M functions.

        Args:
            outputs: Logits, (M, B, C), or dense: (M, B, C, ...) or (M, B, ..., C). The class
                dimension of dense outputs is `class_dim`, or that of targets seen before, or the
                one that `class_names` or another setting with one entry per class fits.

        Returns:
            Probabilities, (B, C) or (B, ..., C).

        Raises:
            ValueError: If the class dimension is unknown, or doesn't have an entry for each class.
        """
        moved = self._classes_last(outputs)
        scaled = scaled_logits(moved, self.temperature, self.scope, self.offset)
        return ClassPredictive(
            scaled, self.averaging, self.class_names, self.ignore_index, self.recalibration
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
        outputs, targets = self._aligned("calibrate", outputs, targets, True)
        logits, labels = outputs.flatten(1, -2), targets.flatten()
        if self.ignore_index is None:
            return logits, labels
        kept = counted(labels, self.ignore_index)
        if not kept.any():
            raise ValueError(f"calibrate: all labels are {self.ignore_index}, which is ignored.")
        return logits[:, kept], labels[kept]

    def _aligned(
        self, name: str, outputs: Tensor, targets: Tensor, samples: bool | None
    ) -> tuple[Tensor, Tensor]:
        """Return logits with classes last and labels; remember the class dimension."""
        found = layout(outputs.shape, targets.shape, samples)
        if found is None:
            raise misfit(name, outputs, targets, (), "")
        dim = -1
        if found.positions:
            known = self._known_dim()
            dim = known or found.dims[0]
            if not known and len(found.dims) > 1:
                raise ambiguous(outputs, f", for targets of shape {tuple(targets.shape)}")
            if dim not in found.dims:
                raise misfit(name, outputs, targets, found.dims, self._source(dim))
            if not known:
                self.found_class_dim.fill_(dim)
        moved = classes_last(outputs, dim, sampled=found.sampled)
        return aligned(name, moved, targets, event=1, samples=found.sampled)

    def _classes_last(self, outputs: Tensor) -> Tensor:
        """Return the outputs of M functions with classes last."""
        shape, sizes = tuple(outputs.shape), self._classes()
        dense = len(shape) > 3
        dim = self._known_dim() if dense else -1
        if not dim and sizes:
            fitting = [d for d in DIMS if all(n == shape[1:][d] for n in sizes.values())]
            if len(fitting) > 1:
                raise ambiguous(outputs, f": both have {shape[-1]} entries")
            dim = fitting[0] if fitting else -1
        if not dim:
            raise ambiguous(outputs, ", samples and batch first, and no targets to tell them by")
        moved = classes_last(outputs, dim, sampled=True) if dense else outputs
        last = moved.shape[-1] if shape else 0
        for name, classes in sizes.items():
            if classes != last:
                where = f", and class dimension {dim} with the batch first" if dense else ""
                raise ValueError(
                    f"{name}: expected {last} {NOUNS[name]}, received {classes}; the outputs have "
                    f"the shape {shape}{where}."
                )
        return moved

    def _known_dim(self) -> int | None:
        """Return the class dimension of dense outputs if it is given or was found."""
        return self.class_dim or int(self.found_class_dim) or None

    def _source(self, dim: int) -> str:
        if self.class_dim:
            return f"class_dim is {dim}"
        return f"it was dimension {dim} in the data seen before"

    def _classes(self) -> dict[str, int]:
        """Return the number of classes by the setting that determines it."""
        found = {"class_names": self.class_names, "class_weights": self.class_weights}
        sizes = {name: len(value) for name, value in found.items() if value is not None}
        vectors = {"temperature": self.temperature, "offset": self.offset}
        return sizes | {name: len(value) for name, value in vectors.items() if value.ndim}

    def extra_repr(self) -> str:
        each = "per class" if self.temperature.ndim else f"{self.temperature.item():.4g}"
        found = {"class_dim": self._known_dim(), "ignore_index": self.ignore_index}
        shown = {"temperature": each} | {n: v for n, v in found.items() if v is not None}
        return ", ".join(f"{name}={value}" for name, value in shown.items())


def _ignored_label(given: object) -> int | None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, Integral)):
        raise TypeError(f"ignore_index: expected an integer or None, received {given!r}.")
    return None if given is None else int(given)


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
