"""Likelihood of binary targets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit._support import checks
from tacit.likelihood.base import aligned
from tacit.likelihood.discrete import DiscreteLikelihood, Scope, check_scope, scaled_logits
from tacit.likelihood.predictive import (
    Averaging,
    BinaryPredictive,
    check_binary,
    check_names,
    check_number_of_names,
)


class Bernoulli(DiscreteLikelihood):
    """One or several binary targets; the outputs are the logits of the positive class.

    Outputs and targets have the same shape, (B,) or (B, D); for a single target per example, either
    may also be (B, 1). Targets are 0 and 1, of any dtype, or probabilities: a soft target t gives
    the expectation over y = 1 with probability t, in the loss, in metrics and in calibration.

    Args:
        names: Names of the targets, D for outputs (B, D); for predictions and their tables.
        averaging: How the predictions of several functions are combined: "probs" (the
            mixture), "log_probs" (the paper's choice) or "logits".

    Examples:
        >>> import torch
        >>> Bernoulli().loss(torch.zeros(4, 1), torch.tensor([0, 1, 1, 0]))
        tensor(0.6931)
        >>> Bernoulli(["red", "round"]).predictive(torch.tensor([[[2.0, -1.0]]])).label_names
        [['red']]
    """

    def __init__(
        self, names: Sequence[str] | None = None, *, averaging: Averaging = "probs"
    ) -> None:
        super().__init__(averaging)
        self.names = None if names is None else check_names(names, "names")

    def loss(self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None) -> Tensor:
        outputs, targets = aligned("Bernoulli", outputs, targets, event=0, samples=samples)
        check_binary(targets)
        check_number_of_names(self.names, targets.shape[-1] if targets.ndim > 1 else 1)
        return F.binary_cross_entropy_with_logits(
            outputs, targets.to(outputs.dtype).expand_as(outputs)
        )

    def predictive(self, outputs: Tensor) -> BinaryPredictive:
        if outputs.ndim == 3 and outputs.shape[-1] == 1:
            outputs = outputs[..., 0]
        scaled = scaled_logits(outputs, self.temperature, self.scope)
        return BinaryPredictive(scaled, self.averaging, self.names, self.recalibration)

    def set_temperature(self, temperature: float | Tensor, scope: Scope = "logits") -> None:
        if isinstance(temperature, Tensor) and temperature.numel() == 1:
            temperature = temperature.item()
        self.temperature.fill_(checks.positive_number("temperature", temperature))
        self.scope = check_scope(scope)
        self.set_recalibration(None)

    def as_classes(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        # Each binary target is an example with two classes; the negative class has logit 0.
        outputs, targets = aligned("calibrate", outputs, targets, event=0, samples=True)
        check_binary(targets)
        logits = torch.stack([torch.zeros_like(outputs), outputs], -1).flatten(1, -2)
        positive = targets.double().flatten()
        return logits, torch.stack([1 - positive, positive], -1)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature.item():.4g}"
