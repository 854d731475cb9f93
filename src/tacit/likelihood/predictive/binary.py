"""Predictive distribution of binary targets."""

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
    """Predicted probabilities of one or several binary targets for B examples.

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
        # The negative class has logit 0; each target becomes a two-class problem.
        logits = torch.stack([torch.zeros_like(self.logits), self.logits], -1)
        return ClassPredictive(logits, self.averaging)

    def errors(self, targets: Tensor) -> dict[str, Tensor]:
        """Return NLL, correctness, confidence and Brier score of each target, 0 or 1."""
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
        """Log-probabilities of the negative and the positive class, (B, ..., 2)."""
        return self._two_classes.log_probs

    @property
    def probs(self) -> Tensor:
        """Probability of the positive class, (B, ...)."""
        return self._two_classes.probs[..., 1]

    @property
    def label(self) -> Tensor:
        """Whether the positive class is more probable, (B, ...)."""
        return self.probs > 0.5

    @property
    def confidence(self) -> Tensor:
        """Probability of the more probable class, (B, ...)."""
        return self._two_classes.confidence

    @property
    def entropy(self) -> Tensor:
        """Entropy in nats, (B, ...): total uncertainty."""
        return self._two_classes.entropy

    @property
    def expected_entropy(self) -> Tensor:
        """Mean entropy of the individual functions, (B, ...): aleatoric."""
        return self._two_classes.expected_entropy

    @property
    def mutual_information(self) -> Tensor:
        """Mutual information of target and function, (B, ...): epistemic, at least 0."""
        return self._two_classes.mutual_information
