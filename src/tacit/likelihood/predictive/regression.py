"""Predictive distribution of real targets: a mixture of M Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from tacit import metrics
from tacit.likelihood.predictive.base import Predictive, rows

STEPS = 60  # bisection steps, enough for the full precision of a double


@dataclass(frozen=True, eq=False, repr=False)
class RegressionPredictive(Predictive):
    """Predictive distributions of B examples: mixtures of the Gaussians of M functions.

    Args:
        means: Predictions of M functions, (M, B, ...).
        scales: Standard deviations of the observation noise, of the same shape; 0 for no noise.
    """

    means: Tensor
    scales: Tensor

    columns: ClassVar[tuple[str, ...]] = ("mean", "std", "epistemic_std", "aleatoric_std")

    def __post_init__(self) -> None:
        if self.means.ndim < 2 or self.means.shape != self.scales.shape:
            raise ValueError(
                "RegressionPredictive: expected means and scales of the same shape (samples, "
                f"batch, ...), received {tuple(self.means.shape)} and {tuple(self.scales.shape)}."
            )

    def __len__(self) -> int:
        return self.means.shape[1]

    def __repr__(self) -> str:
        return f"RegressionPredictive({len(self)} examples, {len(self.means)} functions)"

    def __getitem__(self, index: int | slice | Tensor) -> RegressionPredictive:
        kept = rows(index, len(self))
        return replace(self, means=self.means[:, kept], scales=self.scales[:, kept])

    @cached_property
    def mean(self) -> Tensor:
        """Mean of the mixture, (B, ...)."""
        return self.means.mean(0)

    @cached_property
    def epistemic_std(self) -> Tensor:
        """Standard deviation of the means across functions, (B, ...)."""
        return self.means.std(0, correction=0)

    @cached_property
    def aleatoric_std(self) -> Tensor:
        """Square root of the mean noise variance, (B, ...)."""
        return self.scales.square().mean(0).sqrt()

    @cached_property
    def std(self) -> Tensor:
        """Standard deviation of the mixture, (B, ...): epistemic and aleatoric combined."""
        return torch.hypot(self.epistemic_std, self.aleatoric_std)

    def log_prob(self, targets: Tensor) -> Tensor:
        """Return the log-density of the mixture at the targets, (B, ...)."""
        z = (self._aligned(targets) - self.means) / self.scales
        log_densities = -0.5 * z.square() - self.scales.log() - 0.5 * math.log(2 * math.pi)
        return torch.logsumexp(log_densities, 0) - math.log(len(self.means))

    def cdf(self, values: Tensor) -> Tensor:
        """Return the probability that the target is at most `values`, (B, ...)."""
        values = self._aligned(values)
        # Without noise a function's CDF is a step at its prediction.
        z = (values - self.means) / self.scales.clamp_min(torch.finfo(self.means.dtype).tiny)
        probability: Tensor = torch.special.ndtr(z).mean(0)
        return probability

    def quantile(self, q: float) -> Tensor:
        """Return the q-quantile of the mixture, (B, ...).

        Computed by bisection on the mixture's CDF, to floating-point precision.
        """
        if not 0 < q < 1:
            raise ValueError(f"quantile: expected a number between 0 and 1, received {q!r}.")
        # The mixture's quantile lies between the extreme quantiles of its components.
        own = self.means + self.scales * math.sqrt(2) * torch.erfinv(
            torch.tensor(2 * q - 1, dtype=torch.float64)
        ).to(self.means)
        low, high = own.amin(0), own.amax(0)
        precise = 4 * torch.finfo(low.dtype).eps * torch.maximum(low.abs(), high.abs())
        for _ in range(STEPS):
            if (high - low <= precise).all():  # immediately for a single function
                break
            middle = (low + high) / 2
            below = self.cdf(middle) < q
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Return the bounds of the central interval with this probability, each (B, ...)."""
        if not 0 < level < 1:
            raise ValueError(f"interval: expected a number between 0 and 1, received {level!r}.")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def coverage(self, targets: Tensor, level: float = 0.9) -> float:
        """Return the fraction of targets inside their central interval."""
        low, high = self.interval(level)
        targets = self._aligned(targets)
        return ((low <= targets) & (targets <= high)).double().mean().item()

    def crps(self, targets: Tensor) -> Tensor:
        """Return the continuous ranked probability score, (B, ...): smaller is better.

        Closed form for a mixture of Gaussians: mean_i A(y - m_i, s_i^2) minus half of
        mean_ij A(m_i - m_j, s_i^2 + s_j^2), where A(m, s^2) = E|X| for X ~ N(m, s^2)
        (Grimit et al., 2006).
        """
        to_target = _expected_absolute(self._aligned(targets) - self.means, self.scales).mean(0)
        between = torch.zeros_like(to_target)
        for mean, scale in zip(self.means, self.scales, strict=True):
            spread = torch.hypot(self.scales, scale)
            between = between + _expected_absolute(self.means - mean, spread).mean(0)
        return to_target - between / (2 * len(self.means))

    def errors(self, targets: Tensor) -> dict[str, Tensor]:
        """Return NLL, squared error, CRPS, 90% coverage and interval score, each (B, ...)."""
        targets = self._aligned(targets)
        low, high = self.interval(0.9)
        return {
            "nll": -self.log_prob(targets),
            "squared_error": (self.mean - targets).square(),
            "crps": self.crps(targets),
            "coverage_90": ((low <= targets) & (targets <= high)).double(),
            "interval_score_90": metrics.interval_score(low, high, targets, 0.9),
        }

    def _aligned(self, targets: Tensor) -> Tensor:
        """Return targets reshaped to the predictions; (B,) and (B, 1) are interchangeable."""
        expected = self.means.shape[1:]
        if expected in (targets.shape[:-1], (*targets.shape, 1)) and 1 in (
            targets.shape[-1], expected[-1],
        ):  # fmt: skip
            return targets.reshape(expected)
        if targets.shape != self.means.shape[1:]:
            raise ValueError(
                f"targets: expected the shape {tuple(self.means.shape[1:])}, received "
                f"{tuple(targets.shape)}."
            )
        return targets


def _expected_absolute(mean: Tensor, std: Tensor) -> Tensor:
    """Return E|X| for X ~ N(mean, std^2); |mean| where std is 0."""
    z = mean / std.clamp_min(torch.finfo(mean.dtype).tiny)
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    expected: Tensor = 2 * std * density + mean * (2 * torch.special.ndtr(z) - 1)
    return expected
