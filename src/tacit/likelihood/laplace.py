"""Regression with Laplace noise of constant scale."""

from __future__ import annotations

from torch import Tensor

from tacit.likelihood.homoscedastic import HomoscedasticLikelihood
from tacit.likelihood.predictive import noise_shapes
from tacit.likelihood.predictive.noise_shapes import NoiseShape


class Laplace(HomoscedasticLikelihood):
    """Real targets with Laplace noise of constant scale; the outputs are the medians.

    The density of a target is exp(-|y - output| / scale) / (2 scale): outliers count in proportion
    to their distance, not to its square. `tacit.fit` trains on the absolute error and sets the
    scale by maximum likelihood, as for `Gaussian`.

    Args:
        scale: Scale of the noise, in the units of the targets, its mean absolute value; with
            `learn` the initial one, which `tacit.fit` replaces. A sequence has one for each output.
        learn: Whether to learn the scale.

    Examples:
        >>> import torch
        >>> likelihood = Laplace(scale=1.0, learn=False)
        >>> likelihood.loss(torch.zeros(2), torch.tensor([1.0, -3.0]))  # 2 + log 2
        tensor(2.6931)
    """

    @property
    def noise(self) -> NoiseShape:
        return noise_shapes.Laplace()

    def _training_loss(self, errors: Tensor) -> Tensor:
        return errors.abs().mean()
