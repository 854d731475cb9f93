"""Predicted probabilities of yes or no."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, get_args

import torch
from torch import Tensor

from tacit.likelihood.predictive.base import Predictive, rows
from tacit.likelihood.predictive.classification import Averaging, ClassPredictive


@dataclass(frozen=True, eq=False, repr=False)
class BinaryPredictive(Predictive):
    """Predicted probabilities of B examples, each with one or several yes-or-no questions.

    Args:
        logits: Logits of M functions, (M, B) or (M, B, D).
        averaging: How the functions are combined.
    """

    logits: Tensor
    averaging: Averaging = "log_probs"

    columns: ClassVar[tuple[str, ...]] = (
        "probs", "label", "confidence", "entropy", "expected_entropy", "mutual_information",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.logits.ndim < 2:
            raise ValueError(
                "BinaryPredictive: expected logits of shape (samples, batch, ...), received "
                f"{tuple(self.logits.shape)}."
            )
        if self.averaging not in get_args(Averaging):
            expected = ", ".join(get_args(Averaging))
            raise ValueError(f"averaging: expected {expected}; received {self.averaging!r}.")

    def __len__(self) -> int:
        return self.logits.shape[1]

    def __repr__(self) -> str:
        return f"BinaryPredictive({len(self)} examples, {len(self.logits)} functions)"

    def __getitem__(self, index: int | slice | Tensor) -> BinaryPredictive:
        return replace(self, logits=self.logits[:, rows(index, len(self))])

    @cached_property
    def _two_classes(self) -> ClassPredictive:
        # No has the logit 0; one more dimension, so that every question is an example of its own.
        logits = torch.stack([torch.zeros_like(self.logits), self.logits], -1)
        return ClassPredictive(logits, self.averaging)

    def errors(self, targets: Tensor) -> dict[str, Tensor]:
        """Return NLL, whether right, confidence and Brier score for targets 0 and 1."""
        return self._two_classes.errors(self._answers(targets))

    def sums(self, targets: Tensor) -> dict[str, Tensor]:
        return self._two_classes.sums(self._answers(targets))

    @staticmethod
    def _answers(targets: Tensor) -> Tensor:
        if not ((targets == 0) | (targets == 1)).all():
            raise ValueError("Bernoulli: expected targets 0 and 1.")
        return targets.long()

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probabilities of no and yes, (B, ..., 2)."""
        return self._two_classes.log_probs

    @property
    def probs(self) -> Tensor:
        """Probability of yes, (B, ...)."""
        return self._two_classes.probs[..., 1]

    @property
    def label(self) -> Tensor:
        """Whether yes is more probable, (B, ...)."""
        return self.probs > 0.5

    @property
    def confidence(self) -> Tensor:
        """Probability of the more probable answer, (B, ...)."""
        return self._two_classes.confidence

    @property
    def entropy(self) -> Tensor:
        """Entropy in nats, (B, ...): all uncertainty."""
        return self._two_classes.entropy

    @property
    def expected_entropy(self) -> Tensor:
        """Mean over functions of their own entropy, (B, ...): aleatoric."""
        return self._two_classes.expected_entropy

    @property
    def mutual_information(self) -> Tensor:
        """What the functions disagree on, (B, ...): epistemic."""
        return self._two_classes.mutual_information
