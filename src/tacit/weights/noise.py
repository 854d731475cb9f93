"""The noise z in w = mean + S z: independent components with mean 0 and variance 1.

Since z is standardised, S S^T is the covariance of the weights for every family.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit._support import checks


class Noise(ABC):
    """A distribution of independent components with mean 0 and variance 1.

    Examples:
        >>> import tacit, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> model = tacit.variational(net, noise=tacit.noise.StudentT(5))
        >>> model.noise
        StudentT(df=5.0)
    """

    symmetric: bool = False
    """Whether z and -z have the same distribution, so that examples can share random numbers."""

    @abstractmethod
    def sample(
        self, shape: tuple[int, ...], *, like: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw a tensor of the given shape.

        Args:
            shape: Shape of the result.
            like: A tensor with the dtype and device of the result.
            generator: Source of randomness on that device; the global one if left out.
        """


@dataclass(frozen=True)
class Gaussian(Noise):
    """Standard normal noise, as in the paper.

    Examples:
        >>> import torch
        >>> Gaussian().sample((2, 3), like=torch.ones(1, dtype=torch.float64)).dtype
        torch.float64
    """

    symmetric = True

    def sample(
        self, shape: tuple[int, ...], *, like: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class Laplace(Noise):
    """Laplace noise: heavier tails than the Gaussian, all moments finite.

    The difference of two standard exponentials is Laplace with variance 2.

    Examples:
        >>> import torch
        >>> z = Laplace().sample((100_000,), like=torch.ones(1), generator=torch.manual_seed(0))
        >>> print(f"{z.var():.2f}, {(z.abs() > 3).float().mean():.3f}")  # of a Gaussian 1.00, 0.003
        1.01, 0.014
    """

    symmetric = True

    def sample(
        self, shape: tuple[int, ...], *, like: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        first = _exponential(shape, like, generator)
        second = _exponential(shape, like, generator)
        return ((first - second) / math.sqrt(2)).to(like.dtype)


@dataclass(frozen=True)
class StudentT(Noise):
    """Student's t noise with `df` degrees of freedom, scaled to variance 1.

    Drawn by Bailey's polar method: with U, V uniform on (0, 1),
    sqrt(df (U^(-2/df) - 1)) cos(2 pi V) is exactly Student's t (Bailey, 1994). E = -log U is
    exponential, so U^(-2/df) - 1 = expm1(2 E / df). The variance of t is df / (df - 2).

    Args:
        df: Degrees of freedom, above 2: otherwise the variance is infinite.

    Examples:
        >>> import torch
        >>> z = StudentT(5).sample((100_000,), like=torch.ones(1), generator=torch.manual_seed(0))
        >>> print(f"{z.var():.2f}, {(z.abs() > 3).float().mean():.3f}")  # of a Gaussian 1.00, 0.003
        1.00, 0.012
    """

    df: float
    symmetric = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "df", checks.positive_number("StudentT(df)", self.df, above=2.0))

    def sample(
        self, shape: tuple[int, ...], *, like: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        exponential = _exponential(shape, like, generator)
        angle = 2 * math.pi * _uniform(shape, like, generator)
        radius = (torch.expm1(2 * exponential / self.df) * (self.df - 2)).sqrt()
        return (radius * torch.cos(angle)).to(like.dtype)


def _uniform(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    # At least single precision: the 256 values of a bfloat16 uniform would truncate the tails.
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.rand(shape, generator=generator, dtype=dtype, device=like.device)


def _exponential(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    # Not Tensor.exponential_, since vmap rejects in-place random operations. rand() is below 1.
    return -torch.log1p(-_uniform(shape, like, generator))
