"""Predictive distribution over classes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit import metrics
from tacit.likelihood.predictive.abstention import Abstention, abstention
from tacit.likelihood.predictive.base import Predictive, rows
from tacit.likelihood.predictive.recalibration import ProbabilityMap
from tacit.metrics.arguments import Values, as_tensor

TOP = 5  # top-k accuracy is reported with more than this many classes

Averaging: TypeAlias = Literal["log_probs", "probs", "logits"]


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise an error unless labels are integers from 0 to `classes` - 1."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(
            f"Categorical: expected integer labels from 0 to {classes - 1}, received "
            f"{labels.dtype}. For regression use likelihood=tacit.Gaussian()."
        )
    # This synchronises with the device, but a failed device-side assertion would end the process.
    if labels.numel():
        low, high = labels.min().item(), labels.max().item()
        if low < 0 or high >= classes:
            wrong = low if low < 0 else high
            raise ValueError(
                f"Categorical: label {wrong} is out of range: the network has {classes} "
                f"outputs, so labels go from 0 to {classes - 1}."
            )


def check_averaging(averaging: Averaging) -> Averaging:
    """Return the averaging if it is valid, else raise ValueError."""
    if averaging not in get_args(Averaging):
        expected = ", ".join(get_args(Averaging))
        raise ValueError(f"averaging: expected {expected}; received {averaging!r}.")
    return averaging


def check_names(names: Sequence[str] | Sequence[int]) -> tuple[str, ...]:
    """Return class names as a tuple of strings, or raise an error unless they are distinct."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"class_names: expected a list of names, received {names!r}.")
    found = tuple(map(str, names))
    twice = [name for name, count in Counter(found).items() if count > 1]
    if twice:
        raise ValueError(
            f"class_names: expected distinct names, received {', '.join(twice)} more than once."
        )
    return found


def average_log_probs(logits: Tensor, averaging: Averaging = "probs") -> Tensor:
    """Return the log-probabilities of M functions combined.

    Args:
        logits: Logits of each function, (M, ..., C).
        averaging: What is averaged: "probs" (the mixture), "log_probs" (and renormalised, the
            paper's choice) or "logits".

    Returns:
        Log-probabilities, (..., C).
    """
    if averaging == "probs":
        return torch.logsumexp(F.log_softmax(logits, -1), 0) - math.log(len(logits))
    if averaging == "logits":
        return F.log_softmax(logits.mean(0), -1)
    check_averaging(averaging)
    return F.log_softmax(F.log_softmax(logits, -1).mean(0), -1)


@dataclass(frozen=True, eq=False, repr=False)
class ClassPredictive(Predictive):
    """Predicted probabilities of C classes for B examples.

    Attributes are computed on first access. The entropy of the mixture decomposes into the mean
    entropy of the functions (`expected_entropy`, aleatoric) and their disagreement
    (`mutual_information`, epistemic).

    Args:
        logits: Logits of M functions, (M, B, C), or (M, B, ..., C) for several labels per example;
            M is 1 for a plain network.
        averaging: How the functions are combined into `log_probs`.
        class_names: Names of the classes, if known.
        recalibration: Maps of the combined probabilities, one for each class (see
            `tacit.calibrate`). `expected_entropy` and `mutual_information` are of the functions,
            which it doesn't change.

    Examples:
        >>> import torch
        >>> p = ClassPredictive(torch.tensor([[[0.0, 2.0]], [[1.0, 1.0]]]))
        >>> p.label, p.confidence, p.mutual_information
        (tensor([1]), tensor([0.6904]), tensor([0.0895]))
    """

    logits: Tensor
    averaging: Averaging = "probs"
    class_names: tuple[str, ...] | None = None
    recalibration: ProbabilityMap | None = None

    columns: ClassVar[tuple[str, ...]] = (
        "probs", "label", "confidence", "entropy", "expected_entropy", "mutual_information",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.logits.ndim < 3:
            raise ValueError(
                "ClassPredictive: expected logits of shape (samples, batch, classes), received "
                f"{tuple(self.logits.shape)}."
            )
        check_averaging(self.averaging)
        names = self.class_names
        if names is not None and len(check_names(names)) != self.logits.shape[-1]:
            raise ValueError(
                f"class_names: expected {self.logits.shape[-1]} names, received {len(names)}."
            )

    def __len__(self) -> int:
        return self.logits.shape[1]

    def __repr__(self) -> str:
        functions, examples, *_, classes = self.logits.shape
        return f"ClassPredictive({examples} examples, {classes} classes, {functions} functions)"

    def __getitem__(self, index: int | slice | Tensor) -> ClassPredictive:
        return replace(self, logits=self.logits[:, rows(index, len(self))])

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probabilities of the functions combined, (B, C)."""
        if self.recalibration is None:
            return average_log_probs(self.logits, self.averaging)
        # In double precision, as in the calibration: maps may be steep.
        exact = average_log_probs(self.logits.double(), self.averaging)
        return self.recalibration.normalised(exact).to(self.logits.dtype)

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities, (B, C)."""
        return self.log_probs.exp()

    @cached_property
    def label(self) -> Tensor:
        """The most probable class, (B,)."""
        return self.log_probs.argmax(-1)

    @property
    def label_names(self) -> list[str]:
        """Names of the most probable classes, or their indices if the classes have no names."""
        names = self.class_names
        return [names[i] if names else str(i) for i in self.label.flatten().tolist()]

    @cached_property
    def confidence(self) -> Tensor:
        """Probability of the most probable class, (B,)."""
        return self.probs.amax(-1)

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of `probs` in nats, (B,): total uncertainty.

        With averaging "probs" it equals `expected_entropy` plus `mutual_information`. The other
        averagings give sharper probabilities than the mixture, so it may be smaller.
        """
        return _entropy(self.log_probs)

    @cached_property
    def expected_entropy(self) -> Tensor:
        """Mean entropy of the individual functions, (B,): aleatoric."""
        return _entropy(F.log_softmax(self.logits, -1)).mean(0)

    @cached_property
    def mutual_information(self) -> Tensor:
        """Entropy of the mixture minus `expected_entropy`, (B,): epistemic, at least 0.

        The mixture is used for every averaging: only its entropy gives a mutual information.
        """
        mixture = _entropy(average_log_probs(self.logits, "probs"))
        return (mixture - self.expected_entropy).clamp_min(0)

    def errors(self, targets: Values) -> dict[str, Tensor]:
        """Return NLL, correctness, confidence and Brier score for labels (B,) or (B, 1)."""
        log_probs, labels = self.flattened(targets)
        probs = log_probs.exp()
        found = {
            "nll": -log_probs.gather(-1, labels[:, None])[:, 0],
            "accuracy": (log_probs.argmax(-1) == labels).double(),
            "confidence": probs.amax(-1),
            "brier": (probs - F.one_hot(labels, probs.shape[-1])).square().sum(-1),
        }
        if probs.shape[-1] > TOP:
            found[f"top{TOP}"] = metrics.among_first(log_probs, labels, TOP)
        return found

    def select(self, targets: Values, risk: float, confidence: float = 0.95) -> Abstention:
        """Return a rule that abstains from uncertain predictions so that few answers are wrong.

        Call it on predictions for calibration data, and the rule on new predictions: it returns
        which to answer. Data used for training or for a temperature give no guarantee.

        Args:
            targets: Labels of the calibration data.
            risk: Bound on the error rate among the answered, for examples from the same
                distribution.
            confidence: Probability, over the calibration data, with which the bound holds.

        Raises:
            ValueError: If there are too few examples, or too many errors, for any threshold.

        Examples:
            >>> import torch
            >>> labels = torch.arange(400) % 2
            >>> logits = 5 * torch.eye(2)[labels]
            >>> logits[:100] = torch.tensor([1.0, 0.0])  # uncertain, and half of them wrong
            >>> rule = ClassPredictive(logits[None]).select(labels, risk=0.05)
            >>> rule.coverage, rule.error, rule(ClassPredictive(torch.zeros(1, 1, 2)))
            (0.75, 0.0, tensor([False]))
        """
        if self.confidence.numel() != len(self):
            raise ValueError("select: expected one label per example, received several.")
        correct = self.errors(targets)["accuracy"] > 0.5
        return abstention(self.confidence.flatten().cpu(), correct, risk, confidence)

    def sums(self, targets: Values) -> dict[str, Tensor]:
        return {"classwise_gaps": metrics.classwise_gaps(*self.flattened(targets))}

    def flattened(self, targets: Values) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (N, C) in double precision and labels (N,), on the CPU."""
        targets, expected = as_tensor("targets", targets), self.log_probs.shape[:-1]
        # (B,) and (B, 1) are interchangeable; a transposed shape is not.
        if targets.shape not in (expected, (*expected, 1)) and (*targets.shape, 1) != expected:
            raise ValueError(
                f"targets: expected {expected.numel()} labels of shape {tuple(expected)}, received "
                f"the shape {tuple(targets.shape)}."
            )
        labels = targets.reshape(-1).cpu()
        log_probs = self.log_probs.reshape(len(labels), -1).cpu().double()
        check_labels(labels, log_probs.shape[-1])
        if log_probs.isnan().any():
            raise ValueError("scores: some predictions are NaN.")
        # Renormalise: in half precision the probabilities do not quite sum to 1.
        return F.log_softmax(log_probs, -1), labels.long()

    def _labels(self, column: str) -> list[str] | None:
        return list(self.class_names) if self.class_names and column == "probs" else None


def _entropy(log_probs: Tensor) -> Tensor:
    return -torch.xlogy(log_probs.exp(), log_probs.exp()).sum(-1)
