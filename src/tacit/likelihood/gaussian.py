"""Regression with homoscedastic noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.likelihood.base import aligned
from tacit.likelihood.continuous import ContinuousLikelihood, best_scale
from tacit.likelihood.predictive import RegressionPredictive
from tacit.metrics.arguments import Values


class Gaussian(ContinuousLikelihood):
    """Real targets with Gaussian noise of constant scale; the outputs are the means.

    Outputs and targets have the same shape, (B,) or (B, D); for a single target per example, either
    may also be (B, 1).

    `tacit.fit` expresses the outputs in units of the targets' standard deviation, trains them on
    the squared error, and sets the scale, one for each output, by maximum likelihood: on the
    validation data if there are any, otherwise on the training data, which an overfitted network
    predicts too well. In your own loop the loss is the negative log-likelihood, whose gradients
    also train the scale, slowly: standardise the targets, and let `tacit.calibrate` set the scale
    after training.

    Args:
        scale: Standard deviation of the noise, in the units of the targets; with `learn` the
            initial one, which `tacit.fit` replaces. A sequence has one for each output.
        learn: Whether to learn the scale.

    Examples:
        >>> import torch
        >>> likelihood = Gaussian(scale=0.5, learn=False)
        >>> likelihood.predictive(torch.zeros(3, 2, 1)).std
        tensor([[0.5000],
                [0.5000]])
    """

    def __init__(self, scale: float | Sequence[float] = 1.0, *, learn: bool = True) -> None:
        super().__init__()
        name = "Gaussian(scale)"
        if isinstance(scale, Sequence) and not isinstance(scale, str):
            scales = torch.tensor([checks.positive_number(name, value) for value in scale])
        else:
            scales = torch.tensor(checks.positive_number(name, scale))
        self.log_scale = nn.Parameter(scales.log(), requires_grad=learn)

    @property
    def learn(self) -> bool:
        """Whether the scale is learned."""
        return self.log_scale.requires_grad

    @property
    def output_scale(self) -> Tensor:
        """Standard deviation of the noise in units of the outputs."""
        return self.log_scale.exp()

    @property
    def scale(self) -> Tensor:
        """Standard deviation of the noise in units of the targets, one number or one per output."""
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
        outputs, targets = aligned("Gaussian", outputs, targets, event=0, samples=samples)
        self._check_outputs(outputs)
        scale = self.output_scale.to(outputs)
        z = (self.standardised(targets) - outputs) / scale
        logs = (scale * self.unit.to(outputs)).log().mean()
        return z.square().mean() / 2 + logs + 0.5 * math.log(2 * math.pi)

    def training_loss(
        self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None
    ) -> Tensor:
        """Return half of the mean squared error, in units of the outputs, if the scale is learned.

        Given any scale, the means that minimise it also minimise the expected negative
        log-likelihood. Its gradients don't grow as the scale shrinks.
        """
        if not self.learn:
            return self.loss(outputs, targets, samples=samples)
        outputs, targets = aligned("Gaussian", outputs, targets, event=0, samples=samples)
        error = (self.standardised(targets) - outputs).square().mean() / 2
        # A gradient of 0, since distributed training expects one for every parameter.
        return error + 0 * self.log_scale.sum().to(outputs)

    def predictive(self, outputs: Tensor) -> RegressionPredictive:
        self._check_outputs(outputs)
        return self._in_units(outputs, self.output_scale.to(outputs).expand_as(outputs))

    def fit_scale(self, outputs: Tensor, targets: Tensor) -> None:
        if not self.learn:
            return
        outputs, targets = aligned("Gaussian", outputs, targets, event=0, samples=True)
        outputs, targets = outputs.detach(), self.standardised(targets).to(outputs)
        own = self.log_scale.shape
        outputs = outputs.reshape(len(outputs), -1, own.numel())
        found = best_scale(outputs, torch.ones_like(outputs), targets.reshape(-1, own.numel()))
        with torch.no_grad():
            self.log_scale.copy_(found.log().reshape(own))

    def extra_repr(self) -> str:
        scale = self.scale
        shown = f"{scale.item():.4g}" if scale.numel() == 1 else f"{tuple(scale.shape)} scales"
        return f"scale={shown}, learn={self.learn}"
