"""Regression with input-dependent noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.likelihood.base import aligned
from tacit.likelihood.continuous import SMALLEST, ContinuousLikelihood, best_scale
from tacit.likelihood.predictive import RegressionPredictive
from tacit.metrics.arguments import Values

BETA = 0.5  # recommended by Seitzer et al. (2022)


class HeteroscedasticGaussian(ContinuousLikelihood):
    """Real targets with Gaussian noise whose scale depends on the input.

    The last dimension of the outputs is twice that of the targets: the means, followed by the
    unconstrained scales, which pass through a softplus.

    `tacit.fit` trains on the beta-NLL (Seitzer et al., 2022), which weights each term of the
    negative log-likelihood by its noise variance to the power 1/2: without the weights, examples
    that already have a small noise scale dominate the gradients, and means that fit badly are
    explained by noise. In your own loop use `training_loss` in place of `loss`.

    Examples:
        >>> import torch
        >>> predictive = HeteroscedasticGaussian().predictive(torch.zeros(4, 2, 6))
        >>> predictive.mean.shape, predictive.std.shape
        (torch.Size([2, 3]), torch.Size([2, 3]))
    """

    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(()))

    def loss(self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None) -> Tensor:
        terms, _ = self._terms(outputs, targets, samples)
        return terms.mean() + self.unit.to(terms).log().mean()

    def training_loss(
        self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None
    ) -> Tensor:
        """Return the beta-NLL, in units of the outputs."""
        terms, scale = self._terms(outputs, targets, samples)
        return (terms * scale.detach().pow(2 * BETA)).mean()

    def predictive(self, outputs: Tensor) -> RegressionPredictive:
        mean, scale = self._parts(outputs)
        return self._in_units(mean, scale * self.factor.to(scale))

    def set_units(self, location: Values, unit: Values, *, flat: bool = False) -> None:
        """Set location and unit of the targets; the factors, one for each unit, start at 1."""
        super().set_units(location, unit, flat=flat)
        self.factor = torch.ones_like(self.unit)

    def fit_scale(self, outputs: Tensor, targets: Tensor) -> None:
        """Set the factors of the predicted scales, one for each unit, to their optimum."""
        mean, scale = self._parts(outputs.detach())
        mean, targets = aligned("fit_scale", mean, targets, event=0, samples=True)
        targets = self.standardised(targets).to(mean)
        size = self.factor.numel()
        found = best_scale(
            mean.reshape(len(mean), -1, size),
            scale.reshape(len(mean), -1, size),
            targets.reshape(-1, size),
        )
        self.factor.copy_(found.reshape(self.factor.shape))

    def _terms(
        self, outputs: Tensor, targets: Tensor, samples: bool | None
    ) -> tuple[Tensor, Tensor]:
        """Return the negative log-likelihood of each target, and its scale, in output units."""
        mean, scale = self._parts(outputs)
        mean, targets = aligned(type(self).__name__, mean, targets, event=0, samples=samples)
        scale = scale.reshape(mean.shape)
        z = (self.standardised(targets) - mean) / scale
        return z.square() / 2 + scale.log() + 0.5 * math.log(2 * math.pi), scale

    @staticmethod
    def _parts(outputs: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.shape[-1] % 2:
            raise ValueError(
                "HeteroscedasticGaussian: expected an even number of outputs, means and scales; "
                f"received {outputs.shape[-1]}."
            )
        mean, raw = torch.chunk(outputs, 2, dim=-1)
        return mean, F.softplus(raw) + SMALLEST
