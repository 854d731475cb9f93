"""Base class of the categorical and the Bernoulli likelihood: logits with a temperature."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from tacit.likelihood.base import Likelihood
from tacit.likelihood.predictive import (
    Averaging,
    BinaryPredictive,
    ClassPredictive,
    check_averaging,
)

Scope: TypeAlias = Literal["logits", "mean"]
"""What a temperature divides: all logits, or their mean over functions only."""


class DiscreteLikelihood(Likelihood):
    """The distribution of a class label or a binary target, given logits.

    A temperature T, set by `tacit.calibrate`, divides the logits of predictions: T > 1 lowers
    confidence. The loss doesn't depend on it.

    Args:
        averaging: How the predictions of several functions are combined: "probs" (the
            mixture), "log_probs" (the paper's choice) or "logits".

    Examples:
        >>> import tacit, torch
        >>> likelihood, logits = tacit.Categorical(), torch.tensor([[[0.0, 4.0]]])
        >>> before = likelihood.predictive(logits).confidence.item()
        >>> likelihood.set_temperature(2.0)  # as `tacit.calibrate` does
        >>> print(f"{before:.3f} {likelihood.predictive(logits).confidence.item():.3f}")
        0.982 0.881
    """

    temperature: Tensor

    def __init__(self, averaging: Averaging = "probs") -> None:
        super().__init__()
        self.averaging: Averaging = check_averaging(averaging)
        self.scope: Scope = "logits"
        self.register_buffer("temperature", torch.ones(()))

    @abstractmethod
    def predictive(self, outputs: Tensor) -> ClassPredictive | BinaryPredictive:
        """Return the predictive distribution from the outputs of M functions, (M, B, ...)."""

    @abstractmethod
    def set_temperature(self, temperature: float | Tensor, scope: Scope = "logits") -> None:
        """Set the temperature of predictions, in place of any other calibration.

        Args:
            temperature: The temperature T > 0.
            scope: What the temperature divides.
        """

    @abstractmethod
    def as_classes(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and targets of validation data as a classification problem.

        Several targets of an example count as several examples, N in total.

        Returns:
            Logits (M, N, C) and targets: labels (N,), or probabilities of the classes (N, C).
        """


def check_scope(scope: Scope) -> Scope:
    """Return the scope if it is valid, else raise ValueError."""
    if scope not in get_args(Scope):
        raise ValueError(f"scope: expected logits or mean, received {scope!r}.")
    return scope


def scaled_logits(
    logits: Tensor, temperature: Tensor, scope: Scope = "logits", offset: Tensor | None = None
) -> Tensor:
    """Return the logits of M functions scaled by a temperature.

    Args:
        logits: (M, B, ...).
        temperature: T, a scalar or one per class, (C,).
        scope: "logits" divides all logits by T; "mean" divides their mean over functions only and
            keeps the deviations from it, as in the paper's theory.
        offset: Added after the division, a scalar or one per class, (C,).
    """
    temperature = temperature.to(logits)
    if scope == "logits":
        scaled = logits / temperature
    else:
        mean = logits.mean(0)
        scaled = mean / temperature + (logits - mean)
    return scaled if offset is None else scaled + offset.to(logits)
