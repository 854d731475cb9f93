"""Regression with homoscedastic noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.likelihood.base import Likelihood, aligned
from tacit.likelihood.predictive import RegressionPredictive


class Gaussian(Likelihood):
    """Real targets with Gaussian noise of constant scale; the outputs are the means.

    Standardise the targets (subtract their mean, divide by their standard deviation); otherwise the
    first steps are far too large.

    Outputs and targets have the same shape, (B,) or (B, D); for a single target per example, either
    may also be (B, 1).

    Args:
        scale: Initial standard deviation of the noise.
        learn: Whether to learn the scale.

    Examples:
        >>> import torch
        >>> likelihood = Gaussian(scale=0.5, learn=False)
        >>> likelihood.predictive(torch.zeros(3, 2, 1)).std
        tensor([[0.5000],
                [0.5000]])
    """

    def __init__(self, scale: float = 1.0, *, learn: bool = True) -> None:
        super().__init__()
        log_scale = torch.tensor(math.log(checks.positive_number("Gaussian(scale)", scale)))
        self.log_scale = nn.Parameter(log_scale, requires_grad=learn)

    @property
    def scale(self) -> Tensor:
        """Standard deviation of the noise."""
        return self.log_scale.exp()

    def loss(self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None) -> Tensor:
        outputs, targets = aligned("Gaussian", outputs, targets, event=0, samples=samples)
        z = (targets - outputs) / self.scale.to(outputs)
        return z.square().mean() / 2 + self.log_scale.to(outputs) + 0.5 * math.log(2 * math.pi)

    def predictive(self, outputs: Tensor) -> RegressionPredictive:
        return RegressionPredictive(outputs, self.scale.to(outputs).expand_as(outputs))

    def extra_repr(self) -> str:
        return f"scale={self.scale.item():.4g}, learn={self.log_scale.requires_grad}"
