"""Base class of the likelihoods of real targets: units of the outputs, and the noise scale."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from tacit.likelihood.base import Likelihood
from tacit.likelihood.predictive import RegressionPredictive, mixture
from tacit.likelihood.predictive.noise_shapes import NORMAL, NoiseShape
from tacit.metrics.arguments import Values, as_tensor


class ContinuousLikelihood(Likelihood):
    """The distribution of real targets given outputs in units of the targets' spread.

    A target is y = location + unit * t, where the outputs describe t. `tacit.fit` sets location and
    unit to mean and standard deviation of the training targets, so that networks train on numbers
    of order 1 whatever the units of the data; losses and predictions are in the units of the data.
    Until then the location is 0 and the unit 1.

    Examples:
        >>> import tacit, torch
        >>> likelihood = tacit.Gaussian()
        >>> likelihood.set_units(location=20.0, unit=5.0)  # of the targets; done by `tacit.fit`
        >>> likelihood.standardised(torch.tensor([20.0, 30.0]))
        tensor([0., 2.])
        >>> likelihood.predictive(torch.tensor([[0.0, 2.0]])).mean  # outputs of one function
        tensor([20., 30.])
    """

    location: Tensor
    unit: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.flat = False
        self.register_buffer("location", torch.zeros(()))
        self.register_buffer("unit", torch.ones(()))

    @property
    @abstractmethod
    def noise(self) -> NoiseShape:
        """Shape of the noise: its distribution for a scale of 1."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None) -> Tensor:
        """Return the mean negative log-likelihood over examples, outputs and samples."""

    @abstractmethod
    def predictive(self, outputs: Tensor) -> RegressionPredictive:
        """Return the predictive distribution from the outputs of M functions, (M, B, ...)."""

    @abstractmethod
    def fit_scale(self, outputs: Tensor, targets: Tensor) -> None:
        """Set the scale of the noise to its optimum on some data.

        Given the functions, this is the maximum of the likelihood of their mixture, the density
        that predictions use: what the spread of the functions explains is not counted as noise.

        Args:
            outputs: Outputs of M functions, (M, B, ...).
            targets: B targets.
        """

    def ensure_coverage(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise predicted noise scales that leave 90 % intervals too narrow, after `fit_scale`.

        A noise scale that is the same for all inputs has no need of it.

        Args:
            outputs: Outputs of M functions, (M, B, ...).
            targets: B targets.
        """

    def set_units(self, location: Values, unit: Values, *, flat: bool = False) -> None:
        """Set location and unit of the targets.

        Args:
            location: Subtracted from the targets: a number, or one for each output.
            unit: Divides them, above 0, of the same shape.
            flat: Whether targets are (B,), so that predictions of outputs (B, 1) are (B,) as well.
        """
        like = self.location
        new_location, new_unit = (as_tensor("units", v).to(like) for v in (location, unit))
        if new_location.shape != new_unit.shape:
            raise ValueError(
                "set_units: expected location and unit of the same shape, received "
                f"{tuple(new_location.shape)} and {tuple(new_unit.shape)}."
            )
        if not (new_location.isfinite().all() and new_unit.isfinite().all()):
            raise ValueError("set_units: expected finite numbers.")
        if not (new_unit > 0).all():
            raise ValueError("set_units: expected units above 0.")
        self.location, self.unit, self.flat = new_location, new_unit, flat

    @property
    def has_units(self) -> bool:
        """Whether location and unit have been set."""
        return bool((self.location != 0).any() or (self.unit != 1).any())

    @property
    def sizes(self) -> tuple[int, ...]:
        """Shape of the targets of an example that have their own units, () for common units."""
        return tuple(self.unit.shape)

    def standardised(self, targets: Tensor) -> Tensor:
        """Return targets in the units of the outputs."""
        self._check_outputs(targets)
        if not targets.is_floating_point():  # counts: location and unit are no integers
            targets = targets.to(self.location)
        return (targets - self.location.to(targets)) / self.unit.to(targets)

    def _in_units(self, means: Tensor, scales: Tensor) -> RegressionPredictive:
        """Return the predictive distribution, in the units of the targets."""
        self._check_outputs(means)
        if self.flat and means.ndim > 2 and means.shape[-1] == 1:
            means, scales = means[..., 0], scales[..., 0]
        unit = self.unit.to(means)
        location = self.location.to(means)
        return RegressionPredictive(
            means * unit + location, scales * unit, self.recalibration, self.noise
        )

    def _check_outputs(self, values: Tensor) -> None:
        own = self.sizes
        if own and tuple(values.shape[-len(own) :]) != own:
            raise ValueError(
                f"{type(self).__name__}: expected outputs of shape {own} for each example, as the "
                f"training targets have, received a tensor of shape {tuple(values.shape)}."
            )

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        # One unit for each output is known only after training: adopt the shapes of the state.
        for name, own in [*self.named_parameters(), *self.named_buffers()]:
            given = state.get(prefix + name)
            if isinstance(given, Tensor) and given.shape != own.shape:
                own.data = own.data.new_ones(given.shape)
        super()._load_from_state_dict(state, prefix, *args)


SMALLEST = 1e-4  # lower bound of a noise scale, in units of the outputs
PRIOR = 5.0  # examples that the prior on the noise scale is worth
POINTS, STEPS = 32, 30  # of the coarse grid, and of the refinement by golden section
LEVEL = 0.9  # of the intervals that decide the least scale


def best_scale(
    means: Tensor,
    scales: Tensor,
    targets: Tensor,
    noise: NoiseShape = NORMAL,
    *,
    steps: int = STEPS,
) -> Tensor:
    """Return the factors of the noise scales that maximise the likelihood of mixtures.

    A prior, worth a few examples, keeps them near the scale of the functions' errors, the root mean
    squared error for Gaussian noise: a few validation examples that all are easy don't make
    predictions certain.

    Args:
        means: Predictions of M functions, (M, B, D).
        scales: Their noise scales before the factor, of the same shape.
        targets: (B, D).
        noise: Shape of the noise.
        steps: Number of steps of the refinement.

    Returns:
        One factor for each output, (D,), at least SMALLEST.
    """
    errors = ((targets - means) / scales).double()
    logs = scales.double().log()
    # The likelihood falls above the root mean squared error, or a little later for Student's t:
    # there every function has too much noise.
    most = 1.0 if noise == NORMAL else 1.2
    high = (most * errors.square().mean((0, 1)).sqrt()).clamp_min(2 * SMALLEST).log()
    low = torch.full_like(high, SMALLEST).log()

    def nll(log_factor: Tensor) -> Tensor:
        z = errors * torch.exp(-log_factor)
        log_densities = noise.log_density(z)
        data = log_factor - torch.logsumexp(log_densities - logs, 0).mean(0)
        prior = log_factor - log_densities.mean((0, 1))
        return data + PRIOR / len(targets) * prior

    grid = low + (high - low) * torch.linspace(0, 1, POINTS).to(low)[:, None]
    best = torch.stack([nll(point) for point in grid]).argmin(0)
    step = (high - low) / (POINTS - 1)
    middle = low + step * best
    return _golden_section(nll, torch.maximum(low, middle - step), middle + step, steps).exp()


def covering_scale(
    means: Tensor, scales: Tensor, targets: Tensor, noise: NoiseShape = NORMAL
) -> Tensor:
    """Return the least factors of the noise scales with which 90 % intervals contain their share.

    Of N targets that are exchangeable with new ones, k inside their intervals promise a coverage of
    k / (N + 1) for those, as in split conformal prediction; k is the number for which this is
    nearest to 90 %.

    Args:
        means: Predictions of M functions, (M, B, D).
        scales: Their noise scales before the factor, of the same shape.
        targets: (B, D).
        noise: Shape of the noise.

    Returns:
        One factor for each output, (D,), at least SMALLEST.
    """
    means, scales, targets = means.double(), scales.double(), targets.double()
    wanted = min(round(LEVEL * (len(targets) + 1)), len(targets))
    edge = noise.quantile(torch.full((), (1 + LEVEL) / 2, dtype=torch.float64)).item()
    # There, all functions have the target inside their own interval.
    most = ((targets - means).abs() / scales).amax((0, 1)) / edge
    high = most.clamp_min(2 * SMALLEST).log()
    low = torch.full_like(high, SMALLEST).log()
    for _ in range(STEPS):
        middle = (low + high) / 2
        probability = mixture.cdf(targets, means, scales * middle.exp(), noise)
        enough = ((probability - 0.5).abs() <= LEVEL / 2).sum(0) >= wanted
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high.exp()


def _golden_section(function: Any, low: Tensor, high: Tensor, steps: int) -> Tensor:
    ratio = (5**0.5 - 1) / 2
    for _ in range(steps):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        smaller = function(left) < function(right)
        high, low = torch.where(smaller, right, high), torch.where(smaller, low, left)
    return (low + high) / 2
