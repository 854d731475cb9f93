"""Predictive distribution over classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit import metrics
from tacit.likelihood.predictive.abstention import Abstention, abstention
from tacit.likelihood.predictive.base import Predictive, rows
from tacit.likelihood.predictive.labels import check_labels, check_names, counted
from tacit.likelihood.predictive.recalibration import ProbabilityMap
from tacit.metrics.arguments import Values, as_tensor

TOP = 5  # top-k accuracy is reported with more than this many classes
CONFUSED = 1000  # largest number of classes with a confusion matrix

Averaging: TypeAlias = Literal["log_probs", "probs", "logits"]


def check_averaging(averaging: Averaging) -> Averaging:
    """Return the averaging if it is valid, else raise ValueError."""
    if averaging not in get_args(Averaging):
        expected = ", ".join(get_args(Averaging))
        raise ValueError(f"averaging: expected {expected}; received {averaging!r}.")
    return averaging


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


def others(prediction: Any) -> Tensor:
    """Return the probability of all classes but the most probable one, (B, ...).

    A sum, not 1 minus the largest: in float32 that is 0 for all probabilities above 1 - 6e-8.
    """
    probs: Tensor = prediction.probs
    return probs.scatter(-1, probs.argmax(-1, keepdim=True), 0).sum(-1)


def margin(prediction: Any) -> Tensor:
    """Return 1 minus the difference of the two largest probabilities, (B, ...)."""
    probs: Tensor = prediction.probs
    second = probs.topk(min(2, probs.shape[-1])).values[..., -1]
    return others(prediction) + second


@dataclass(frozen=True, eq=False, repr=False)
class ClassPredictive(Predictive):
    """Predicted probabilities of C classes for B examples.

    Attributes are computed on first access. The entropy of the mixture decomposes into the mean
    entropy of the functions (`expected_entropy`, aleatoric) and their disagreement
    (`mutual_information`, epistemic).

    `uncertainty(by)` has these three, "max_prob" (1 minus the largest probability), "margin"
    (1 minus the difference of the two largest) and "energy".

    Args:
        logits: Logits of M functions, (M, B, C), or (M, B, ..., C) for several labels per example,
            such as those of pixels: classes are last here, whatever their dimension in the
            network's outputs. M is 1 for a plain network.
        averaging: How the functions are combined into `log_probs`.
        class_names: Names of the classes, if known.
        ignore_index: Label of positions that don't count.
        recalibration: Maps of the combined probabilities, one for each class (see
            `tacit.calibrate`). `expected_entropy` and `mutual_information` are of the functions,
            which it doesn't change.

    Examples:
        >>> import torch
        >>> p = ClassPredictive(torch.tensor([[[0.0, 2.0]], [[1.0, 1.0]]]))
        >>> p.label, p.confidence, p.mutual_information
        (tensor([1]), tensor([0.6904]), tensor([0.0895]))
        >>> p.uncertainty("max_prob")
        tensor([0.3096])
    """

    logits: Tensor
    averaging: Averaging = "probs"
    class_names: tuple[str, ...] | None = None
    ignore_index: int | None = None
    recalibration: ProbabilityMap | None = None

    columns: ClassVar[tuple[str, ...]] = (
        "probs", "label", "confidence", "entropy", "expected_entropy", "mutual_information",
    )  # fmt: skip
    uncertainties: ClassVar[Mapping[str, Callable[[Any], Tensor]]] = {
        "entropy": attrgetter("entropy"),
        "mutual_information": attrgetter("mutual_information"),
        "expected_entropy": attrgetter("expected_entropy"),
        "max_prob": others,
        "margin": margin,
        "energy": attrgetter("energy"),
    }

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
        """Log-probabilities of the functions combined, (B, C) or (B, ..., C)."""
        if self.recalibration is None:
            return average_log_probs(self.logits, self.averaging)
        # In double precision, as in the calibration: maps may be steep.
        exact = average_log_probs(self.logits.double(), self.averaging)
        return self.recalibration.normalised(exact).to(self.logits.dtype)

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities, (B, C) or (B, ..., C)."""
        return self.log_probs.exp()

    @cached_property
    def label(self) -> Tensor:
        """The most probable class, (B,) or (B, ...)."""
        return self.log_probs.argmax(-1)

    @property
    def label_names(self) -> list[str]:
        """Names of the most probable classes, or their indices if the classes have no names."""
        names = self.class_names
        return [names[i] if names else str(i) for i in self.label.flatten().tolist()]

    def to_frame(self) -> Any:
        """Return a pandas DataFrame; of named classes with their names in a column `label_name`.

        Raises:
            ModuleNotFoundError: If pandas is not installed.
        """
        frame = super().to_frame()
        if self.class_names is not None and self.label.ndim == 1:
            frame.insert(frame.columns.get_loc("label") + 1, "label_name", self.label_names)
        return frame

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

    @cached_property
    def energy(self) -> Tensor:
        """Minus the log-sum-exp of the logits, averaged over functions, (B,) (Liu et al., 2020).

        With their temperature at 1. A temperature set by `tacit.calibrate` has already divided
        `logits`, so calibration changes the energy.
        """
        return -torch.logsumexp(self.logits, -1).mean(0)

    def errors(self, targets: Values) -> dict[str, Tensor]:
        """Return NLL, correctness, confidence and Brier score of each label that counts, (N,)."""
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

    def select(
        self,
        targets: Values,
        risk: float,
        confidence: float = 0.95,
        *,
        generator: torch.Generator | None = None,
    ) -> Abstention:
        """Return a rule that abstains from uncertain predictions so that few answers are wrong.

        Call it on predictions for calibration data, and the rule on new predictions: it returns
        which to answer. Data used for training or for a temperature give no guarantee.

        Labels of one example, such as those of its pixels, are not independent, so one that counts
        is drawn from each. The bound then holds for a random position of a random example.

        Args:
            targets: Labels of the calibration data.
            risk: Bound on the error rate among the answered, for examples from the same
                distribution.
            confidence: Probability, over the calibration data, with which the bound holds.
            generator: Source of randomness for drawing a position from each example.

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
        labels = self.checked_labels(targets)
        if self.logits.ndim > 3 or self.ignore_index is not None:
            single, labels = self._one_label_each(labels, generator)
            return single.select(labels, risk, confidence)
        correct = self.errors(labels)["accuracy"] > 0.5
        return abstention(self.confidence.cpu(), correct, risk, confidence)

    def sums(self, targets: Values) -> dict[str, Tensor]:
        log_probs, labels = self.flattened(targets)
        if not len(labels):
            return {}
        found = {"classwise_gaps": metrics.classwise_gaps(log_probs, labels)}
        if self.logits.ndim > 3 and log_probs.shape[-1] <= CONFUSED:
            predicted = log_probs.argmax(-1)
            found["confusion"] = metrics.confusion_matrix(predicted, labels, log_probs.shape[-1])
        return found

    def checked_labels(self, targets: Values) -> Tensor:
        """Return checked labels of the shape of `label`, on the CPU."""
        targets, expected = as_tensor("targets", targets), self.logits.shape[1:-1]
        # (B,) and (B, 1) are interchangeable; a transposed shape is not.
        if targets.shape not in (expected, (*expected, 1)) and (*targets.shape, 1) != expected:
            raise ValueError(
                f"targets: expected {expected.numel()} labels of shape {tuple(expected)}, received "
                f"the shape {tuple(targets.shape)}."
            )
        check_labels(targets, self.logits.shape[-1], self.ignore_index)
        return targets.reshape(expected).cpu().long()

    def flattened(self, targets: Values) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (N, C) in double precision and the N labels that count."""
        labels = self.checked_labels(targets).flatten()
        log_probs = self.log_probs.reshape(len(labels), -1).cpu()
        if self.ignore_index is not None:
            kept = counted(labels, self.ignore_index)
            log_probs, labels = log_probs[kept], labels[kept]
        if log_probs.isnan().any():
            raise ValueError("scores: some predictions are NaN.")
        # Renormalise: in half precision the probabilities do not quite sum to 1.
        return F.log_softmax(log_probs.double(), -1), labels

    def _one_label_each(
        self, labels: Tensor, generator: torch.Generator | None
    ) -> tuple[ClassPredictive, Tensor]:
        """Return the prediction and label at a random position of each example that has one."""
        flat = labels[..., None].flatten(1)
        kept = counted(flat, self.ignore_index)
        order = torch.rand(flat.shape, generator=generator).masked_fill(~kept, -1)
        examples = kept.any(1).nonzero()[:, 0]
        positions = order[examples].argmax(1)
        logits = self.logits[:, :, None].flatten(2, -2)  # (M, B, positions, C)
        chosen = logits[:, examples.to(logits.device), positions.to(logits.device)]
        single = ClassPredictive(
            chosen, self.averaging, self.class_names, recalibration=self.recalibration
        )
        return single, flat[examples, positions]

    def _class_names(self) -> tuple[str, ...] | None:
        return self.class_names

    def _labels(self, column: str) -> list[str] | None:
        return list(self.class_names) if self.class_names and column == "probs" else None


def _entropy(log_probs: Tensor) -> Tensor:
    return -torch.xlogy(log_probs.exp(), log_probs.exp()).sum(-1)
