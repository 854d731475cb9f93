"""Predictive distribution of binary targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.likelihood.predictive.abstention import Abstention
from tacit.likelihood.predictive.base import Predictive, rows
from tacit.likelihood.predictive.classification import (
    Averaging,
    ClassPredictive,
    check_averaging,
    margin,
    others,
)
from tacit.likelihood.predictive.labels import check_names, check_number_of_names
from tacit.likelihood.predictive.recalibration import ProbabilityMap
from tacit.metrics.arguments import Values, as_tensor
from tacit.metrics.classification import frequency_gaps


def check_binary(targets: Tensor) -> None:
    """Raise an error unless targets are numbers from 0 to 1."""
    if targets.numel():
        low, high = targets.min().item(), targets.max().item()
        if not (low >= 0 and high <= 1):  # NaN included
            wrong = high if low >= 0 else low
            raise ValueError(
                f"Bernoulli: target {wrong} is out of range: expected 0 or 1, or a probability "
                "between them."
            )


@dataclass(frozen=True, eq=False, repr=False)
class BinaryPredictive(Predictive):
    """Predicted probabilities of one or several binary targets for B examples.

    `uncertainty(by)` has the scores of `ClassPredictive`, for each target.

    Args:
        logits: Logits of M functions, (M, B) or (M, B, D).
        averaging: How the functions are combined.
        names: Names of the D targets, if known.
        recalibration: Maps of the combined probabilities of the negative and the positive class;
            see `ClassPredictive`.

    Examples:
        >>> import torch
        >>> p = BinaryPredictive(torch.tensor([[[2.0, -1.0], [3.0, 1.0]]]), names=("red", "round"))
        >>> p.label_names
        [['red'], ['red', 'round']]
    """

    logits: Tensor
    averaging: Averaging = "probs"
    names: tuple[str, ...] | None = None
    recalibration: ProbabilityMap | None = None

    columns: ClassVar[tuple[str, ...]] = (
        "probs", "label", "confidence", "entropy", "expected_entropy", "mutual_information",
    )  # fmt: skip
    uncertainties: ClassVar[Mapping[str, Callable[[Any], Tensor]]] = {
        "entropy": attrgetter("entropy"),
        "mutual_information": attrgetter("mutual_information"),
        "expected_entropy": attrgetter("expected_entropy"),
        "max_prob": lambda prediction: others(prediction.two_classes),
        "margin": lambda prediction: margin(prediction.two_classes),
        "energy": attrgetter("energy"),
    }

    def __post_init__(self) -> None:
        if self.logits.ndim < 2:
            raise ValueError(
                "BinaryPredictive: expected logits of shape (samples, batch, ...), received "
                f"{tuple(self.logits.shape)}."
            )
        check_averaging(self.averaging)
        if self.names is not None:
            check_names(self.names, "names")
        check_number_of_names(self.names, self.logits.shape[-1] if self.logits.ndim > 2 else 1)

    def __len__(self) -> int:
        return self.logits.shape[1]

    def __repr__(self) -> str:
        return f"BinaryPredictive({len(self)} examples, {len(self.logits)} functions)"

    def __getitem__(self, index: int | slice | Tensor) -> BinaryPredictive:
        return replace(self, logits=self.logits[:, rows(index, len(self))])

    @cached_property
    def two_classes(self) -> ClassPredictive:
        """Each target as a problem of two classes, of which the negative one has logit 0."""
        logits = torch.stack([torch.zeros_like(self.logits), self.logits], -1)
        return ClassPredictive(logits, self.averaging, recalibration=self.recalibration)

    def errors(self, targets: Values) -> dict[str, Tensor]:
        """Return NLL, correctness, confidence and Brier score of each target.

        For a soft target t each is the expectation over y = 1 with probability t: the NLL is the
        cross-entropy.
        """
        t = as_tensor("targets", targets)
        check_binary(t)
        if _hard(t):
            return self.two_classes.errors(t.long())
        negative, positive = (
            self.two_classes.errors(torch.full_like(t, label, dtype=torch.long)) for label in (0, 1)
        )
        t = t.flatten().cpu().double()
        # Where t is 0 or 1 the other outcome doesn't count, even if its NLL is infinite.
        return {
            name: torch.where(t > 0, t * positive[name], 0.0)
            + torch.where(t < 1, (1 - t) * negative[name], 0.0)
            for name in negative
        }

    def sums(self, targets: Values) -> dict[str, Tensor]:
        t = as_tensor("targets", targets)
        check_binary(t)
        if _hard(t):
            found = self.two_classes.sums(t.long())
            # Several targets are not positions, unless they form an image.
            return {n: v for n, v in found.items() if n != "confusion" or self.logits.ndim > 3}
        log_probs, _ = self.two_classes.flattened(torch.zeros_like(t, dtype=torch.long))
        t = t.flatten().cpu().double()
        return {"classwise_gaps": frequency_gaps(log_probs.exp(), torch.stack([1 - t, t], -1))}

    def select(
        self,
        targets: Values,
        risk: float,
        confidence: float = 0.95,
        *,
        generator: torch.Generator | None = None,
    ) -> Abstention:
        """Return a rule that abstains from uncertain predictions; see `ClassPredictive.select`."""
        labels = as_tensor("targets", targets)
        check_binary(labels)
        if not _hard(labels):
            raise ValueError("select: expected targets that are 0 or 1, received soft targets.")
        return self.two_classes.select(labels.long(), risk, confidence, generator=generator)

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probabilities of the negative and the positive class, (B, ..., 2)."""
        return self.two_classes.log_probs

    @property
    def probs(self) -> Tensor:
        """Probability of the positive class, (B, ...)."""
        return self.two_classes.probs[..., 1]

    @property
    def label(self) -> Tensor:
        """Whether the positive class is more probable, (B, ...)."""
        return self.probs > 0.5

    @property
    def label_names(self) -> list[list[str]]:
        """Names of the targets predicted to be positive, or their indices, for each example."""
        if self.label.ndim > 2:
            raise ValueError(
                f"label_names: expected targets (B,) or (B, D), received {tuple(self.label.shape)}."
            )
        labels = self.label.reshape(len(self), -1)
        names = self.names or tuple(map(str, range(labels.shape[1])))
        return [[name for name, on in zip(names, row, strict=True) if on] for row in labels]

    @property
    def confidence(self) -> Tensor:
        """Probability of the more probable class, (B, ...)."""
        return self.two_classes.confidence

    @property
    def entropy(self) -> Tensor:
        """Entropy in nats, (B, ...): total uncertainty."""
        return self.two_classes.entropy

    @property
    def expected_entropy(self) -> Tensor:
        """Mean entropy of the individual functions, (B, ...): aleatoric."""
        return self.two_classes.expected_entropy

    @property
    def mutual_information(self) -> Tensor:
        """Mutual information of target and function, (B, ...): epistemic, at least 0."""
        return self.two_classes.mutual_information

    @cached_property
    def energy(self) -> Tensor:
        """The energy of the logits -l/2 and l/2 of the two classes, (B, ...).

        It is -log(2 cosh(l/2)), averaged over functions. Only differences of logits matter for the
        probabilities; this choice doesn't depend on which of the classes is the positive one.
        """
        return (self.logits / 2 - F.softplus(self.logits)).mean(0)

    def _labels(self, column: str) -> list[str] | None:
        return list(self.names) if self.names else None


def _hard(targets: Tensor) -> bool:
    """Return whether all targets are 0 or 1."""
    return bool(((targets == 0) | (targets == 1)).all())
