"""Likelihood of class labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit._support import checks
from tacit.likelihood.base import aligned
from tacit.likelihood.discrete import DiscreteLikelihood, Scope, check_scope, scaled_logits
from tacit.likelihood.predictive import Averaging, ClassPredictive, check_labels


class Categorical(DiscreteLikelihood):
    """One of C classes; the outputs are logits, (..., C).

    The loss is the cross-entropy; targets are labels from 0 to C - 1, (B,) or (B, 1). A temperature
    T, set by `tacit.calibrate`, divides the logits of predictions: T > 1 lowers confidence.

    Args:
        class_names: Names of the classes.
        class_weights: Weights of the classes in the loss, which is a weighted mean, as in torch.
        label_smoothing: Probability mass of each target that is spread uniformly over all classes.
        averaging: How the predictions of several functions are combined: "log_probs" (the paper's
            choice), "probs" or "logits".

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
        class_names: Sequence[str] | None = None,
        *,
        class_weights: Sequence[float] | Tensor | None = None,
        label_smoothing: float = 0.0,
        averaging: Averaging = "log_probs",
    ) -> None:
        super().__init__(averaging)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "label_smoothing: expected a number from 0 to below 1, received "
                f"{label_smoothing!r}."
            )
        self.class_names = None if class_names is None else tuple(map(str, class_names))
        self.label_smoothing = float(label_smoothing)
        weights = None
        if class_weights is not None:
            weights = torch.as_tensor(class_weights, dtype=torch.get_default_dtype())
        self.register_buffer("class_weights", weights)
        self.register_buffer("offset", torch.zeros(()))

    def loss(self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None) -> Tensor:
        outputs, targets = aligned("Categorical", outputs, targets, event=1, samples=samples)
        check_labels(targets, outputs.shape[-1])
        weights = self.class_weights
        if weights is not None and len(weights) != outputs.shape[-1]:
            raise ValueError(
                f"class_weights: expected {outputs.shape[-1]} weights, received {len(weights)}."
            )
        return F.cross_entropy(
            outputs.flatten(0, -2),
            targets.long().expand(outputs.shape[:-1]).flatten(),
            weight=None if weights is None else weights.to(outputs.dtype),
            label_smoothing=self.label_smoothing,
        )

    def predictive(self, outputs: Tensor) -> ClassPredictive:
        scaled = scaled_logits(outputs, self.temperature, self.scope, self.offset)
        return ClassPredictive(scaled, self.averaging, self.class_names)

    def set_temperature(
        self, temperature: float | Tensor, scope: Scope = "logits", offset: float | Tensor = 0.0
    ) -> None:
        """Set the temperature of predictions and the offset added to the logits.

        Args:
            temperature: One temperature, or one per class, (C,).
            scope: What the temperature divides.
            offset: Offset of each class, (C,), or one for all.
        """
        temperatures = torch.as_tensor(temperature).to(self.temperature)
        for value in temperatures.flatten().tolist():
            checks.positive_number("temperature", value)
        offsets = torch.as_tensor(offset).to(self.offset)
        if not offsets.isfinite().all():
            raise ValueError(f"offset: expected finite values, received {offset!r}.")
        self.temperature, self.scope, self.offset = temperatures, check_scope(scope), offsets

    def as_classes(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return aligned("calibrate", outputs, targets, event=1, samples=True)

    def extra_repr(self) -> str:
        if self.temperature.ndim:
            return "temperature=per class"
        return f"temperature={self.temperature.item():.4g}"
