"""Regression with Student-t noise of constant scale."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit._support import checks
from tacit.likelihood.homoscedastic import HomoscedasticLikelihood
from tacit.likelihood.predictive import noise_shapes
from tacit.likelihood.predictive.noise_shapes import NoiseShape

ROUNDS = 10  # of the fixed-point iteration for the scale of a batch
MOST_DF = 1000  # Gaussian for all purposes


class StudentT(HomoscedasticLikelihood):
    """Real targets with Student-t noise of constant scale: for data with outliers.

    The outputs are the locations. An error of many scales hardly changes the gradients.

    `tacit.fit` trains on the negative log-likelihood with the scale that is best for each batch,
    times its square, which keeps gradients of order 1. Then it sets the scale by maximum
    likelihood, as for `Gaussian`.

    Args:
        scale: Scale of the noise, in the units of the targets; its standard deviation is larger by
            sqrt(df / (df - 2)). With `learn` the initial one, which `tacit.fit` replaces. A
            sequence has one for each output.
        df: Degrees of freedom, a whole number from 3 to 1000; the fewer, the heavier the tails.
        learn: Whether to learn the scale.

    Examples:
        >>> import torch
        >>> likelihood = StudentT(scale=1.0, df=4, learn=False)
        >>> likelihood.predictive(torch.zeros(1, 2)).quantile(0.95)
        tensor([2.1318, 2.1318])
    """

    def __init__(
        self, scale: float | Sequence[float] = 1.0, *, df: int = 4, learn: bool = True
    ) -> None:
        super().__init__(scale, learn=learn)
        self.df = degrees_of_freedom("StudentT(df)", df)

    @property
    def noise(self) -> NoiseShape:
        return noise_shapes.StudentT(self.df)

    def _training_loss(self, errors: Tensor) -> Tensor:
        size = self.unit.numel()
        errors = errors.reshape(-1, size)
        scale = best_square(errors.detach(), self.df)
        z2 = errors.square() / (self.df * scale)
        return (scale * torch.log1p(z2)).mean() * (self.df + 1) / 2

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, df={self.df}"


def degrees_of_freedom(name: str, df: int) -> int:
    """Return the degrees of freedom as a Python integer.

    Raises:
        ValueError: If it is below 3, where the noise has no variance, or above 1000.
    """
    found = checks.positive_integer(name, df)
    if not 3 <= found <= MOST_DF:
        raise ValueError(
            f"{name}: expected a whole number from 3 to {MOST_DF}, received {df}. With fewer the "
            "noise has no variance; with more it is Gaussian."
        )
    return found


def best_square(errors: Tensor, df: int) -> Tensor:
    """Return the squares of the scales with the largest likelihood, (D,), of errors (N, D).

    Each step is one of expectation maximisation: the mean of squared errors, weighted by
    (df + 1) / (df + z^2).
    """
    squared = errors.square()
    found = squared.mean(0).clamp_min(torch.finfo(errors.dtype).tiny ** 0.5)
    for _ in range(ROUNDS):
        weights = (df + 1) / (df + squared / found)
        found = (weights * squared).mean(0).clamp_min(torch.finfo(errors.dtype).tiny ** 0.5)
    return found
