"""Regression with noise whose scale depends on the input."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.likelihood.base import aligned
from tacit.likelihood.continuous import (
    SMALLEST,
    ContinuousLikelihood,
    best_scale,
    covering_scale,
)
from tacit.likelihood.predictive import RegressionPredictive, noise_shapes
from tacit.likelihood.predictive.noise_shapes import NORMAL, NoiseShape
from tacit.likelihood.student_t import degrees_of_freedom
from tacit.metrics.arguments import Values

BETA = 0.5  # recommended by Seitzer et al. (2022)
TRAINING_DF, CHOICES = 4, (3, 4, 6, 10, 20)  # degrees of freedom in training, and to choose from
ROUGH = 6  # steps of the search for the scale, to compare degrees of freedom


class HeteroscedasticLikelihood(ContinuousLikelihood):
    """Real targets with noise whose scale depends on the input.

    The last dimension of the outputs is twice that of the targets: the locations, followed by the
    unconstrained scales, which pass through a softplus.

    `tacit.fit` trains on the beta-NLL (Seitzer et al., 2022), which weights each term of the
    negative log-likelihood by its noise scale: without the weights, examples that already have a
    small noise scale dominate the gradients, and locations that fit badly are explained by noise.
    In your own loop use `training_loss` in place of `loss`.

    Examples:
        >>> import tacit, torch
        >>> likelihood = tacit.HeteroscedasticGaussian()
        >>> outputs = torch.tensor([[0.0, -2.0], [0.0, 2.0]])  # locations and unconstrained scales
        >>> likelihood.predictive(outputs[None]).std.flatten()
        tensor([0.1270, 2.1270])
    """

    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(()))

    def loss(self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None) -> Tensor:
        terms, _ = self._terms(outputs, targets, samples, self.noise)
        return terms.mean() + self.unit.to(terms).log().mean()

    def training_loss(
        self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None
    ) -> Tensor:
        """Return the beta-NLL, in units of the outputs."""
        terms, scale = self._terms(outputs, targets, samples, self._training_noise)
        return (terms * scale.detach().pow(2 * BETA)).mean()

    def predictive(self, outputs: Tensor) -> RegressionPredictive:
        mean, scale = self._parts(outputs)
        return self._in_units(mean, scale * self.factor.to(scale))

    def set_units(self, location: Values, unit: Values, *, flat: bool = False) -> None:
        """Set location and unit of the targets; the factors, one for each unit, start at 1."""
        super().set_units(location, unit, flat=flat)
        self.factor = torch.ones_like(self.unit)

    def reset(self) -> None:
        """Remove what `fit_scale` has set."""
        self.factor.fill_(1.0)

    def fit_scale(self, outputs: Tensor, targets: Tensor) -> None:
        """Set the factors of the predicted scales, one for each unit, to their optimum."""
        self._set_factor(self._best_factor(*self._by_unit(outputs, targets)))

    def ensure_coverage(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise the factors until 90 % intervals contain 90 % of the targets, if they don't.

        Scales that depend on the input overfit. The few targets with far too small a scale count
        for little in the likelihood of Student-t noise, which leaves intervals too narrow.
        """
        found = covering_scale(*self._by_unit(outputs, targets), self.noise)
        self._set_factor(found.maximum(self.factor.reshape(-1).to(found)))

    def _by_unit(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return locations, scales and targets, (M, B, D), (M, B, D) and (B, D), for D units."""
        mean, scale = self._parts(outputs.detach())
        mean, targets = aligned("fit_scale", mean, targets, event=0, samples=True)
        targets = self.standardised(targets).to(mean)
        size = self.factor.numel()
        mean, scale = (part.reshape(len(part), -1, size) for part in (mean, scale))
        return mean, scale, targets.reshape(-1, size)

    def _set_factor(self, found: Tensor) -> None:
        self.factor.copy_(found.reshape(self.factor.shape))

    def _best_factor(self, means: Tensor, scales: Tensor, targets: Tensor) -> Tensor:
        """Return the factors with the largest likelihood; (M, B, D), (M, B, D), (B, D) to (D,)."""
        return best_scale(means, scales, targets, self.noise)

    @property
    def _training_noise(self) -> NoiseShape:
        return self.noise

    def _terms(
        self, outputs: Tensor, targets: Tensor, samples: bool | None, noise: NoiseShape
    ) -> tuple[Tensor, Tensor]:
        """Return the negative log-likelihood of each target, and its scale, in output units."""
        mean, scale = self._parts(outputs)
        mean, targets = aligned(type(self).__name__, mean, targets, event=0, samples=samples)
        scale = scale.reshape(mean.shape)
        z = (self.standardised(targets) - mean) / scale
        return scale.log() - noise.log_density(z), scale

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.shape[-1] % 2:
            raise ValueError(
                f"{type(self).__name__}: expected an even number of outputs, means and scales; "
                f"received {outputs.shape[-1]}."
            )
        mean, raw = torch.chunk(outputs, 2, dim=-1)
        return mean, F.softplus(raw) + SMALLEST


class HeteroscedasticGaussian(HeteroscedasticLikelihood):
    """Real targets with Gaussian noise whose scale depends on the input.

    The last dimension of the outputs is twice that of the targets: the means, followed by the
    unconstrained scales, which pass through a softplus. `tacit.fit` trains on the beta-NLL (Seitzer
    et al., 2022); in your own loop use `training_loss`.

    Examples:
        >>> import torch
        >>> predictive = HeteroscedasticGaussian().predictive(torch.zeros(4, 2, 6))
        >>> predictive.mean.shape, predictive.std.shape
        (torch.Size([2, 3]), torch.Size([2, 3]))
    """

    @property
    def noise(self) -> NoiseShape:
        return NORMAL


class HeteroscedasticStudentT(HeteroscedasticLikelihood):
    """Real targets with Student-t noise whose scale depends on the input: the default for tables.

    Outputs and training are those of `HeteroscedasticGaussian`. A target that is far from its
    prediction, given its scale, neither dominates the gradients nor costs much in the NLL.

    Args:
        df: Degrees of freedom, a whole number from 3 to 1000; the fewer, the heavier the tails. By
            default training uses 4, and `tacit.fit` or `tacit.calibrate` then chooses 3, 4, 6, 10
            or 20 with the scales: 20 is nearly Gaussian.

    Examples:
        >>> import torch
        >>> predictive = HeteroscedasticStudentT().predictive(torch.zeros(4, 2, 6))
        >>> predictive.mean.shape, predictive.std.shape
        (torch.Size([2, 3]), torch.Size([2, 3]))
    """

    degrees: Tensor

    def __init__(self, df: int | None = None) -> None:
        super().__init__()
        name = "HeteroscedasticStudentT(df)"
        self.df = None if df is None else degrees_of_freedom(name, df)
        self.register_buffer("degrees", torch.tensor(self.df or TRAINING_DF))

    @property
    def noise(self) -> NoiseShape:
        name = "HeteroscedasticStudentT.degrees"  # may come from a file
        return noise_shapes.StudentT(degrees_of_freedom(name, int(self.degrees)))

    @property
    def _training_noise(self) -> NoiseShape:
        return noise_shapes.StudentT(self.df or TRAINING_DF)

    def reset(self) -> None:
        super().reset()
        self.degrees.fill_(self.df or TRAINING_DF)

    def _best_factor(self, means: Tensor, scales: Tensor, targets: Tensor) -> Tensor:
        if self.df is not None:
            return super()._best_factor(means, scales, targets)

        def nll(degrees: int) -> float:
            noise = noise_shapes.StudentT(degrees)
            factors = best_scale(means, scales, targets, noise, steps=ROUGH).to(scales)
            found = RegressionPredictive(means, scales * factors, None, noise)
            return -found.log_prob(targets).double().mean().item()

        self.degrees.fill_(min(CHOICES, key=nll))
        return super()._best_factor(means, scales, targets)

    def extra_repr(self) -> str:
        return f"df={int(self.degrees)}"
