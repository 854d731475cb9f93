"""Abstention: a confidence threshold that bounds the error rate among the answered examples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tacit.metrics.arguments import between_0_and_1

COVERAGES = 20  # thresholds that are tested: those that answer 5 %, 10 %, ... 100 % of the examples

ROUNDING = 16  # units of rounding between a threshold and the largest confidence below it


class Confident(Protocol):
    """Predictions with a confidence."""

    @property
    def confidence(self) -> Tensor:
        """Confidence of each prediction, (B, ...)."""


@dataclass(frozen=True)
class Abstention:
    """A rule that answers only if the confidence is high enough; made by `prediction.select`.

    Attributes:
        threshold: Confidence above which predictions are answered.
        risk: Bound on the error rate among the answered.
        confidence: Probability with which the bound holds.
        coverage: Fraction of the calibration examples that were answered.
        error: Error rate among them.
    """

    threshold: float
    risk: float
    confidence: float
    coverage: float
    error: float

    def __call__(self, prediction: Confident) -> Tensor:
        """Return which predictions to answer, (B, ...)."""
        return prediction.confidence.double() > self.threshold


def abstention(scores: Tensor, correct: Tensor, risk: float, confidence: float) -> Abstention:
    """Return the rule that answers most examples among those whose risk is bounded.

    Given the k-th largest confidence as the threshold, the examples above it are independent draws
    of the answered ones, and their errors are binomial with the risk at that threshold. Each of
    `COVERAGES` ranks, which don't depend on the data, is tested at (1 - confidence) / COVERAGES, so
    all bounds hold at once with the probability `confidence` (Bonferroni).

    Args:
        scores: Confidences of the calibration examples, (B,).
        correct: Whether each prediction is correct, (B,).
        risk: Bound on the error rate among the answered.
        confidence: Probability, over the calibration data, with which it holds.

    Raises:
        ValueError: If no threshold keeps the error rate below the risk.
    """
    risk = between_0_and_1("select(risk)", risk)
    confidence = between_0_and_1("select(confidence)", confidence)
    delta = (1 - confidence) / COVERAGES
    # Equal examples have equal confidences only up to rounding; they must stay below the threshold.
    slack = ROUNDING * min(torch.finfo(dtype).eps for dtype in (scores.dtype, torch.float32))
    order = scores.double().argsort(descending=True)
    ordered, wrong = scores.double()[order], (~correct[order]).cumsum(0)
    for step in range(COVERAGES, 0, -1):
        count = len(scores) * step // COVERAGES
        if not count:
            break
        threshold = ordered[count].item() + slack if count < len(scores) else -math.inf
        above = int((ordered > threshold).sum())  # fewer than `count` if there are ties
        if above and binomial_tail(above, int(wrong[above - 1]), risk) <= delta:
            error = wrong[above - 1].item() / above
            return Abstention(threshold, risk, confidence, above / len(scores), error)
    needed = math.ceil(math.log(delta) / math.log1p(-risk))
    raise ValueError(
        f"select: no threshold keeps the error rate below {risk:g} with probability "
        f"{confidence:g}. At least {needed} confident and correct calibration examples are needed, "
        f"received {len(scores)} of which {int(correct.sum())} are correct; use more, or allow a "
        "larger risk."
    )


def binomial_tail(count: int, errors: int, risk: float) -> float:
    """Return the probability of at most this many errors in a binomial sample."""
    k = torch.arange(errors + 1, dtype=torch.float64)
    n = torch.tensor(float(count), dtype=torch.float64)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    log_probabilities = ways + k * math.log(risk) + (n - k) * math.log1p(-risk)
    return torch.logsumexp(log_probabilities, 0).exp().item()
