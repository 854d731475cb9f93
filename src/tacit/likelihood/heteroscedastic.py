"""Regression with input-dependent noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.likelihood.base import Likelihood, aligned
from tacit.likelihood.predictive import RegressionPredictive

SMALLEST = 1e-4  # lower bound of the scale; keeps the likelihood bounded as the noise vanishes


class HeteroscedasticGaussian(Likelihood):
    """Real targets with Gaussian noise whose scale depends on the input.

    The last dimension of the outputs is twice that of the targets: the means, followed by the
    unconstrained scales, which pass through a softplus. It needs smaller learning rates than
    `Gaussian` and standardised targets: gradients grow as the scale shrinks.

    Examples:
        >>> import torch
        >>> predictive = HeteroscedasticGaussian().predictive(torch.zeros(4, 2, 6))
        >>> predictive.mean.shape, predictive.std.shape
        (torch.Size([2, 3]), torch.Size([2, 3]))
    """

    def loss(self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None) -> Tensor:
        mean, scale = self._parts(outputs)
        mean, targets = aligned(type(self).__name__, mean, targets, event=0, samples=samples)
        scale = scale.reshape(mean.shape)
        z = (targets - mean) / scale
        return (z.square() / 2 + scale.log()).mean() + 0.5 * math.log(2 * math.pi)

    def predictive(self, outputs: Tensor) -> RegressionPredictive:
        return RegressionPredictive(*self._parts(outputs))

    @staticmethod
    def _parts(outputs: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.shape[-1] % 2:
            raise ValueError(
                "HeteroscedasticGaussian: expected an even number of outputs, means and scales; "
                f"received {outputs.shape[-1]}."
            )
        mean, raw = torch.chunk(outputs, 2, dim=-1)
        return mean, F.softplus(raw) + SMALLEST
