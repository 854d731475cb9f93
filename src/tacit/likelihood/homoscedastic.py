"""Base class of the likelihoods of real targets with noise of constant scale."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.likelihood.base import aligned
from tacit.likelihood.continuous import ContinuousLikelihood, best_scale
from tacit.likelihood.predictive import RegressionPredictive
from tacit.metrics.arguments import Values


class HomoscedasticLikelihood(ContinuousLikelihood):
    """Real targets with noise of constant scale; the outputs are the locations.

    Outputs and targets have the same shape, (B,) or (B, D); for a single target per example, either
    may also be (B, 1).

    Args:
        scale: Scale of the noise, in the units of the targets; with `learn` the initial one, which
            `tacit.fit` replaces. A sequence has one for each output.
        learn: Whether to learn the scale. In `tacit.fit` a fixed one has no effect on training,
            except with `ELBO` and `GVI`, and those of several outputs weigh their errors.

    Examples:
        >>> import tacit, torch
        >>> likelihood, functions = tacit.Gaussian(), torch.zeros(8, 1000)
        >>> targets = 3 * torch.randn(1000, generator=torch.manual_seed(0))
        >>> likelihood.fit_scale(functions, targets)
        >>> print(f"{likelihood.scale.item():.1f}")
        3.1
    """

    def __init__(self, scale: float | Sequence[float] = 1.0, *, learn: bool = True) -> None:
        super().__init__()
        name = f"{type(self).__name__}(scale)"
        if isinstance(scale, Sequence) and not isinstance(scale, str):
            scales = torch.tensor([checks.positive_number(name, value) for value in scale])
        else:
            scales = torch.tensor(checks.positive_number(name, scale))
        self.log_scale = nn.Parameter(scales.log(), requires_grad=learn)

    @abstractmethod
    def _training_loss(self, errors: Tensor) -> Tensor:
        """Return a loss of errors in units of the outputs, (N, ...), that needs no scale.

        Its minimisers are those of the expected negative log-likelihood with some scale, but its
        gradients don't grow as the scale shrinks.
        """

    @property
    def learn(self) -> bool:
        """Whether the scale is learned."""
        return self.log_scale.requires_grad

    @property
    def output_scale(self) -> Tensor:
        """Scale of the noise in units of the outputs."""
        return self.log_scale.exp()

    @property
    def scale(self) -> Tensor:
        """Scale of the noise in units of the targets, one number or one per output."""
        return self.output_scale * self.unit

    def set_units(self, location: Values, unit: Values, *, flat: bool = False) -> None:
        """Set location and unit of the targets; a scale that is learned starts at the unit."""
        before = self.unit
        super().set_units(location, unit, flat=flat)
        with torch.no_grad():
            kept = self.log_scale + before.log() - self.unit.log()
            start = torch.zeros_like(self.unit) if self.learn else kept
        if start.shape == self.log_scale.shape:
            self.log_scale.data.copy_(start)
        else:
            self.log_scale = nn.Parameter(start, requires_grad=self.learn)

    def loss(self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None) -> Tensor:
        errors = self._errors(outputs, targets, samples)
        scale = self.output_scale.to(errors)
        logs = (scale * self.unit.to(errors)).log().mean()
        return logs - self.noise.log_density(errors / scale).mean()

    def training_loss(
        self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None
    ) -> Tensor:
        """Return a loss whose gradients don't depend on the size of the scale, in output units.

        Fixed scales weigh the errors of several outputs against each other, as in the likelihood.
        """
        errors = self._errors(outputs, targets, samples)
        if not self.learn:
            scale = self.output_scale.to(errors)
            errors = errors * (scale.min() / scale)
        found = self._training_loss(errors)
        # A gradient of 0, since distributed training expects one for every parameter.
        return found + 0 * self.log_scale.sum().to(found)

    def predictive(self, outputs: Tensor) -> RegressionPredictive:
        self._check_outputs(outputs)
        return self._in_units(outputs, self.output_scale.to(outputs).expand_as(outputs))

    def fit_scale(self, outputs: Tensor, targets: Tensor) -> None:
        if not self.learn:
            return
        outputs, targets = aligned(type(self).__name__, outputs, targets, event=0, samples=True)
        outputs, targets = outputs.detach(), self.standardised(targets).to(outputs)
        own = self.log_scale.shape
        outputs = outputs.reshape(len(outputs), -1, own.numel())
        targets = targets.reshape(-1, own.numel())
        found = best_scale(outputs, torch.ones_like(outputs), targets, self.noise)
        with torch.no_grad():
            self.log_scale.copy_(found.log().reshape(own))

    def extra_repr(self) -> str:
        scale = self.scale
        shown = f"{scale.item():.4g}" if scale.numel() == 1 else f"{tuple(scale.shape)} scales"
        return f"scale={shown}, learn={self.learn}"

    def _errors(self, outputs: Tensor, targets: Tensor, samples: bool | None) -> Tensor:
        outputs, targets = aligned(type(self).__name__, outputs, targets, event=0, samples=samples)
        self._check_outputs(outputs)
        return self.standardised(targets) - outputs
