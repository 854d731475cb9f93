"""Predictive distribution of real targets: a mixture over M functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from tacit import metrics
from tacit._support import checks
from tacit.likelihood.predictive import mixture, paths, reshaped
from tacit.likelihood.predictive.base import Predictive, rows
from tacit.likelihood.predictive.noise_shapes import NORMAL, NoiseShape
from tacit.likelihood.predictive.recalibration import ProbabilityMap
from tacit.metrics.arguments import Values, as_tensor, between_0_and_1


@dataclass(frozen=True, eq=False, repr=False)
class RegressionPredictive(Predictive):
    """Predictive distributions of B examples: mixtures over M functions, each with its noise.

    The noise is Gaussian, or that of `noise`.

    With a recalibration R (see `tacit.calibrate`) the distribution function is R(F), where F is the
    mixture's. All attributes and methods are then of this distribution, whose density is f times
    the slope of R; mean, standard deviations and CRPS have no gradients.

    `uncertainty(by)` has "std", "epistemic_std" and "aleatoric_std". The entropy of a mixture of
    Gaussians has no closed form.

    Args:
        means: Predictions of M functions, (M, B, ...).
        scales: Scales of the observation noise, of the same shape; 0 for no noise. For Gaussian
            noise these are standard deviations.
        recalibration: Map of the predicted probabilities, one for each output, (...); from 0 to 1,
            strictly increasing.
        noise: Shape of the noise, Gaussian by default.

    Examples:
        >>> import torch
        >>> p = RegressionPredictive(torch.tensor([[0.0], [2.0]]), torch.tensor([[0.5], [0.5]]))
        >>> p.mean, p.epistemic_std, p.aleatoric_std
        (tensor([1.]), tensor([1.]), tensor([0.5000]))
        >>> low, high = p.interval(0.9)
        >>> print(f"{low.item():.2f} to {high.item():.2f}, CRPS {p.crps([1.5]).item():.2f}")
        -0.64 to 2.64, CRPS 0.40
    """

    means: Tensor
    scales: Tensor
    recalibration: ProbabilityMap | None = None
    noise: NoiseShape = NORMAL

    columns: ClassVar[tuple[str, ...]] = ("mean", "std", "epistemic_std", "aleatoric_std")
    uncertainties: ClassVar[Mapping[str, Callable[[Any], Tensor]]] = {
        name: attrgetter(name) for name in columns[1:]
    }

    def __post_init__(self) -> None:
        if self.means.ndim < 2 or self.means.shape != self.scales.shape:
            raise ValueError(
                "RegressionPredictive: expected means and scales of the same shape (samples, "
                f"batch, ...), received {tuple(self.means.shape)} and {tuple(self.scales.shape)}."
            )
        if not self.scales.is_meta and (self.scales < 0).any():
            raise ValueError(
                "RegressionPredictive: expected scales of at least 0, received "
                f"{self.scales.min().item():.4g}."
            )
        if self.recalibration is not None:
            self._check_recalibration(self.recalibration)

    def __len__(self) -> int:
        return self.means.shape[1]

    def __repr__(self) -> str:
        return f"RegressionPredictive({len(self)} examples, {len(self.means)} functions)"

    def __getitem__(self, index: int | slice | Tensor) -> RegressionPredictive:
        kept = rows(index, len(self))
        return replace(self, means=self.means[:, kept], scales=self.scales[:, kept])

    def output(self, index: int) -> RegressionPredictive:
        """Return the predictions of one of several outputs, such as a step of a forecast.

        Args:
            index: Index in the first dimension after the batch.

        Raises:
            ValueError: If there is only one output.
            IndexError: If there is no such output.

        Examples:
            >>> import torch
            >>> p = RegressionPredictive(torch.zeros(8, 100, 12), torch.ones(8, 100, 12))
            >>> p.output(11).mean.shape
            torch.Size([100])
        """
        if self.means.ndim < 3:
            raise ValueError("output: expected several outputs per example, there is one.")
        size, own = self.means.shape[2], self.recalibration
        if not -size <= index < size:
            raise IndexError(f"output: index {index} is out of range for {size} outputs.")
        return replace(
            self,
            means=self.means[:, :, index],
            scales=self.scales[:, :, index],
            recalibration=None if own is None else ProbabilityMap(own.knots[index]),
        )

    @cached_property
    def mean(self) -> Tensor:
        """Mean of the distribution, (B, ...)."""
        return self.means.mean(0) if self._moments is None else self._shaped(self._moments.mean)

    @cached_property
    def epistemic_std(self) -> Tensor:
        """Standard deviation of the means across functions, (B, ...).

        A recalibration weights the functions and changes their means; see `reshaped.Moments`.
        """
        if self._moments is not None:
            return self._shaped(self._moments.epistemic_std)
        return self.means.std(0, correction=0)

    @cached_property
    def aleatoric_std(self) -> Tensor:
        """Square root of the mean noise variance, (B, ...)."""
        if self._moments is not None:
            return self._shaped(self._moments.aleatoric_std)
        return self.noise.std * self.scales.square().mean(0).sqrt()

    @cached_property
    def std(self) -> Tensor:
        """Standard deviation of the distribution, (B, ...): epistemic and aleatoric combined."""
        return torch.hypot(self.epistemic_std, self.aleatoric_std)

    def log_prob(self, targets: Values) -> Tensor:
        """Return the log-density at the targets, (B, ...).

        The density of a function without noise is 0, except at its prediction, where a scale of 0
        counts as the smallest positive number: finite, so that means over examples are not NaN.
        """
        targets = self.aligned(targets)
        z, point = mixture.standardised(targets, self.means, self.scales)
        log_densities = self.noise.log_density(z) - self.scales.masked_fill(point, 1).log()
        peak = self.noise.log_density(torch.zeros((), dtype=torch.float64)).item()
        largest = peak - math.log(torch.finfo(z.dtype).tiny)
        at_points = torch.where(targets == self.means, largest, -math.inf).to(z.dtype)
        log_densities = torch.where(point, at_points, log_densities)
        found = torch.logsumexp(log_densities, 0) - math.log(len(self.means))
        if self.recalibration is None:
            return found
        return found + self.recalibration.slope(self._mixture_cdf(targets)).log()

    def cdf(self, values: Values) -> Tensor:
        """Return the probability that the target is at most `values`, (B, ...)."""
        found = self._mixture_cdf(self.aligned(values))
        return found if self.recalibration is None else self.recalibration(found)

    def quantile(self, q: float) -> Tensor:
        """Return the q-quantile, (B, ...), to floating-point precision.

        It has no gradients.
        """
        level: float | Tensor = between_0_and_1("quantile", q)
        if self.recalibration is not None:
            level = self.recalibration.inverse(q).to(self.means.device)
            level = level.expand(self.means.shape[1:]).flatten()
        parts = self.means.flatten(1), self.scales.flatten(1)
        found = mixture.quantile(level, *parts, self.noise)
        return self._shaped(found)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Return n draws of the targets, (n, B, ...): sample paths of forecasts.

        Each draw is one function for all examples and outputs, plus independent noise, so the
        outputs of a path depend on each other as those of the functions do. All functions are used
        equally often, up to one draw. A recalibration then moves each target of a path to the same
        probability of its recalibrated distribution; it has no say about their dependence.

        Args:
            n: Number of draws.
            generator: Source of randomness.

        Examples:
            >>> import torch
            >>> means = torch.tensor([[[0.0, 0.0]], [[5.0, 5.0]]])  # 2 functions, 2 outputs
            >>> RegressionPredictive(means, torch.zeros(2, 1, 2)).sample(2).sort(0).values
            tensor([[[0., 0.]],
                    [[5., 5.]]])
        """
        drawn = paths.sample(self.means, self.scales, n, generator, self.noise)
        if self.recalibration is None:
            return drawn
        return reshaped.mapped(drawn, self.means, self.scales, self.recalibration, self.noise)

    def interval(
        self,
        level: float = 0.9,
        *,
        joint: bool = False,
        draws: int = 1000,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the bounds of the central interval with this probability, each (B, ...).

        Args:
            level: The probability.
            joint: Whether the box of all intervals of an example has this probability, instead of
                each interval: central intervals, scaled about the medians by one factor for each
                example so that they contain this share of its sample paths.
            draws: Number of sample paths, for joint intervals.
            generator: Source of randomness, for joint intervals.

        Examples:
            >>> import torch
            >>> means = torch.randn(100, 1, 12, generator=torch.manual_seed(0))  # 12 time steps
            >>> p = RegressionPredictive(means, torch.full_like(means, 0.1))
            >>> low, high = p.interval(0.9)
            >>> joint_low, joint_high = p.interval(0.9, joint=True, generator=torch.manual_seed(0))
            >>> bool((joint_low < low).all() and (joint_high > high).all())
            True
        """
        level = between_0_and_1("interval", level)
        checks.positive_integer("draws", draws)
        low, high = self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)
        if not joint or low[:1].numel() <= 1:
            return low, high
        middle = self.quantile(0.5)
        # An interval without width, where most functions agree, can't be scaled.
        least = self.std / 10 + 16 * torch.finfo(middle.dtype).eps * (1 + middle.abs())
        box = paths.Box(middle, (middle - low).maximum(least), (high - middle).maximum(least))
        return paths.widened(box, self, level, draws, generator)

    def coverage(
        self,
        targets: Values,
        level: float = 0.9,
        *,
        joint: bool = False,
        draws: int = 1000,
        generator: torch.Generator | None = None,
    ) -> float:
        """Return the fraction of targets inside their central interval.

        Args:
            targets: Targets of the B examples.
            level: Probability of the intervals.
            joint: Whether to count examples with all targets inside their joint intervals.
            draws: Number of sample paths, for joint intervals.
            generator: Source of randomness, for joint intervals.
        """
        low, high = self.interval(level, joint=joint, draws=draws, generator=generator)
        inside = self._inside(targets, low, high)
        inside = inside[..., None].flatten(1).all(1) if joint else inside
        return inside.double().mean().item()

    def coverage_by_output(self, targets: Values, level: float = 0.9) -> Tensor:
        """Return the fraction of examples inside their central interval for each output, (...).

        Args:
            targets: Targets of the B examples.
            level: Probability of the intervals.
        """
        return self._inside(targets, *self.interval(level)).double().mean(0)

    def _inside(self, targets: Values, low: Tensor, high: Tensor) -> Tensor:
        y = self._finite(targets)
        return (low <= y) & (y <= high)

    def crps(self, targets: Values) -> Tensor:
        """Return the continuous ranked probability score, (B, ...): smaller is better.

        For a mixture it is mean_i E|y - X_i| minus half of mean_ij E|X_i - X_j|, where X_i has the
        distribution of function i (Grimit et al., 2006). The first term has a closed form. The
        second is an integral or a sum over near pairs; see `mixture.half_mean_distance`. With a
        recalibration see `reshaped.crps`.
        """
        if self._knots is not None:
            t, mean = self.aligned(targets).flatten(), self.mean.flatten()
            parts = self.means.flatten(1), self.scales.flatten(1), self._knots
            return self._shaped(reshaped.crps(*parts, mean, t, self.noise))
        difference = self.aligned(targets) - self.means
        z, point = mixture.standardised(difference, torch.zeros_like(difference), self.scales)
        noisy = self.scales * self.noise.distance(z)
        to_target = torch.where(point, difference.abs(), noisy).mean(0)
        between = mixture.half_mean_distance(
            self.means.flatten(1), self.scales.flatten(1), self.noise
        )
        return (to_target - between.reshape(to_target.shape)).clamp_min(0)  # rounding errors

    def errors(self, targets: Values) -> dict[str, Tensor]:
        """Return NLL, squared error, CRPS, 90% coverage and interval score, each (B, ...)."""
        if torch.finfo(self.means.dtype).bits < 32:
            return self.to(torch.float32).errors(targets)
        targets = self._finite(targets)
        low, high = self.interval(0.9)
        return {
            "nll": -self.log_prob(targets),
            "squared_error": (self.mean - targets).square(),
            "crps": self.crps(targets),
            "coverage_90": self._inside(targets, low, high).double(),
            "interval_score_90": metrics.interval_score(low, high, targets, 0.9),
        }

    def aligned(self, targets: Values) -> Tensor:
        """Return targets reshaped to the predictions; (B,) and (B, 1) are interchangeable."""
        expected, found = self.means.shape[1:], as_tensor("targets", targets).to(self.means)
        if found.shape not in (expected, (*expected, 1)) and (*found.shape, 1) != expected:
            raise ValueError(
                f"targets: expected the shape {tuple(expected)}, received {tuple(found.shape)}."
            )
        return found.reshape(expected)

    def _finite(self, targets: Values) -> Tensor:
        """Return aligned targets; a missing one would count as outside of its interval."""
        found = self.aligned(targets)
        if not found.isfinite().all():
            raise ValueError("targets: some are not finite (NaN or infinite); leave them out.")
        return found

    def _mixture_cdf(self, values: Tensor) -> Tensor:
        return mixture.cdf(values, self.means, self.scales, self.noise)

    def _shaped(self, flat: Tensor) -> Tensor:
        """Return numbers of all targets, (N,), in the shape and dtype of the predictions."""
        return flat.reshape(self.means.shape[1:]).to(self.means)

    @cached_property
    def _knots(self) -> Tensor | None:
        """Knots of each target's map, (N, 2, K)."""
        if self.recalibration is None:
            return None
        own = self.recalibration.knots.to(self.means.device)
        return own.expand(*self.means.shape[1:], *own.shape[-2:]).flatten(0, -3)

    @cached_property
    def _moments(self) -> reshaped.Moments | None:
        if self._knots is None:
            return None
        parts = self.means.flatten(1), self.scales.flatten(1)
        return reshaped.moments(*parts, self._knots, self.noise)

    def _check_recalibration(self, given: ProbabilityMap) -> None:
        outputs = tuple(self.means.shape[2:])
        if given.shape != outputs:
            raise ValueError(
                f"recalibration: expected maps of shape {outputs}, one for each output, received "
                f"{given.shape}."
            )
        x, y = given.knots.unbind(-2)
        whole = (given.knots[..., 0] == 0).all() and (given.knots[..., -1] == 1).all()
        steps, last = given.knots.diff(dim=-1) > 0, (x[..., 1:] == 1) & (y[..., 1:] == 1)
        if not whole or not (steps.all(-2) | last).all():
            raise ValueError("recalibration: expected strictly increasing maps from 0 to 1.")
        if not self.scales.is_meta and not (self.scales > 0).all():
            raise ValueError(
                "recalibration: expected scales above 0. Without noise the predicted probabilities "
                "have steps, and the recalibrated distribution has no density."
            )
