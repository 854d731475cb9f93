"""Regression with Gaussian noise of constant scale."""

from __future__ import annotations

from torch import Tensor

from tacit.likelihood.homoscedastic import HomoscedasticLikelihood
from tacit.likelihood.predictive.noise_shapes import NORMAL, NoiseShape


class Gaussian(HomoscedasticLikelihood):
    """Real targets with Gaussian noise of constant scale; the outputs are the means.

    Outputs and targets have the same shape, (B,) or (B, D); for a single target per example, either
    may also be (B, 1).

    `tacit.fit` expresses the outputs in units of the targets' standard deviation, trains them on
    half of the squared error, and sets the scale, one for each output, by maximum likelihood: on
    the validation data if there are any, otherwise on the training data, which an overfitted
    network predicts too well. In your own loop the loss is the negative log-likelihood, whose
    gradients also train the scale, slowly: standardise the targets, and let `tacit.calibrate` set
    the scale after training.

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

    @property
    def noise(self) -> NoiseShape:
        return NORMAL

    def _training_loss(self, errors: Tensor) -> Tensor:
        return errors.square().mean() / 2
