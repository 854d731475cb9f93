"""Shapes of the observation noise, as distributions with location 0 and scale 1."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

STEPS = 60  # of bisection for a quantile, enough for double precision
NEAREST, FARTHEST = 1e-17, 1e15  # quantiles between which they are found


class NoiseShape(ABC):
    """A symmetric distribution Z; the noise of a target is scale * Z."""

    @property
    @abstractmethod
    def std(self) -> float:
        """Standard deviation of Z."""

    @abstractmethod
    def log_density(self, z: Tensor) -> Tensor:
        """Return the log-density at z."""

    @abstractmethod
    def cdf(self, z: Tensor) -> Tensor:
        """Return the distribution function at z."""

    @abstractmethod
    def quantile(self, q: Tensor) -> Tensor:
        """Return the q-quantiles."""

    @abstractmethod
    def distance(self, z: Tensor) -> Tensor:
        """Return E|z - Z|."""

    @abstractmethod
    def partial_moments(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return E[Z^r 1(Z <= z)] for r = 0, 1, 2."""

    @abstractmethod
    def sample(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return independent draws in shape, dtype and device of a tensor."""


@dataclass(frozen=True)
class Normal(NoiseShape):
    """The standard normal distribution."""

    @property
    def std(self) -> float:
        return 1.0

    def log_density(self, z: Tensor) -> Tensor:
        return -0.5 * z.square() - 0.5 * math.log(2 * math.pi)

    def cdf(self, z: Tensor) -> Tensor:
        found: Tensor = torch.special.ndtr(z)
        return found

    def quantile(self, q: Tensor) -> Tensor:
        found: Tensor = torch.special.ndtri(q)
        return found

    def distance(self, z: Tensor) -> Tensor:
        return 2 * self.log_density(z).exp() + z * (2 * self.cdf(z) - 1)

    def partial_moments(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probability, density = self.cdf(z), self.log_density(z).exp()
        return probability, -density, probability - z * density

    def sample(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class StudentT(NoiseShape):
    """Student's t distribution with a whole number of degrees of freedom.

    Its distribution function is then a finite sum of powers of cos(t), t = atan(z / sqrt(df)).

    Args:
        df: Degrees of freedom, at least 3.
    """

    df: int

    @property
    def std(self) -> float:
        return math.sqrt(self.df / (self.df - 2))

    def log_density(self, z: Tensor) -> Tensor:
        df = self.df
        constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
        return constant - (df + 1) / 2 * torch.log1p(z.square() / df)

    def cdf(self, z: Tensor) -> Tensor:
        df = self.df
        cos2 = df / (df + z.square())
        sine = z / torch.sqrt(df + z.square())
        # Abramowitz and Stegun (1972), 26.7.3 and 26.7.4.
        odd = df % 2
        term = torch.ones_like(z)
        total = torch.zeros_like(z)
        for k in range(df // 2):
            total = total + term
            term = term * cos2 * ((2 * k + 1 + odd) / (2 * k + 2 + odd))
        if not odd:
            return 0.5 + sine * total / 2
        angle = torch.atan(z / math.sqrt(df))
        return 0.5 + (angle + sine * cos2.sqrt() * total) / math.pi

    def quantile(self, q: Tensor) -> Tensor:
        levels, positions = q.double().unique(return_inverse=True)  # one level, as a rule
        if len(levels) > 1:
            return _student_quantiles(self.df, levels)[positions].to(q)
        found = [_student_quantile(self.df, level) for level in levels.tolist()]
        return torch.tensor(found, dtype=torch.float64, device=q.device)[positions].to(q)

    def distance(self, z: Tensor) -> Tensor:
        probability, first, _ = self.partial_moments(z)
        return z * (2 * probability - 1) - 2 * first

    def partial_moments(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        df, probability = self.df, self.cdf(z)
        first = -self.log_density(z).exp() * (df + z.square()) / (df - 1)
        # (1 + z^2 / df) times the density is a multiple of that with two degrees of freedom less.
        fewer = StudentT(df - 2).cdf(z * math.sqrt((df - 2) / df))
        return probability, first, df * ((df - 1) / (df - 2) * fewer - probability)

    def sample(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        normal = Normal()
        drawn = normal.sample(like, generator)
        squares = sum(normal.sample(like, generator).square() for _ in range(self.df))
        return drawn * torch.rsqrt(torch.as_tensor(squares) / self.df)


@dataclass(frozen=True)
class Laplace(NoiseShape):
    """The Laplace distribution: the density is exp(-|z|) / 2."""

    @property
    def std(self) -> float:
        return math.sqrt(2)

    def log_density(self, z: Tensor) -> Tensor:
        return -z.abs() - math.log(2)

    def cdf(self, z: Tensor) -> Tensor:
        tail = torch.exp(-z.abs()) / 2
        return torch.where(z < 0, tail, 1 - tail)

    def quantile(self, q: Tensor) -> Tensor:
        return torch.where(q < 0.5, torch.log(2 * q), -torch.log(2 * (1 - q)))

    def distance(self, z: Tensor) -> Tensor:
        return z.abs() + torch.exp(-z.abs())

    def partial_moments(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size, tail = z.abs(), torch.exp(-z.abs()) / 2
        second = (size.square() + 2 * size + 2) * tail
        return self.cdf(z), -(1 + size) * tail, torch.where(z < 0, second, 2 - second)

    def sample(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        uniform = torch.rand(
            like.shape, generator=generator, dtype=torch.float64, device=like.device
        )
        eps = torch.finfo(torch.float64).eps
        return self.quantile(uniform.clamp(eps, 1 - eps)).to(like)


@lru_cache(maxsize=256)
def _student_quantile(df: int, level: float) -> float:
    """Return a quantile; training asks for the same ones after each epoch."""
    return _student_quantiles(df, torch.tensor([level], dtype=torch.float64)).item()


def _student_quantiles(df: int, levels: Tensor) -> Tensor:
    """Return quantiles by bisection of the logarithm, to rounding; NaN outside of [0, 1]."""
    noise, tail = StudentT(df), torch.minimum(levels, 1 - levels)
    low = torch.full_like(tail, math.log(FARTHEST))  # of the quantile at the tail, without its sign
    high = torch.full_like(tail, math.log(NEAREST))
    for _ in range(STEPS):
        middle = (low + high) / 2
        beyond = noise.cdf(-middle.exp()) < tail
        low, high = torch.where(beyond, middle, low), torch.where(beyond, high, middle)
    found = torch.where(tail == 0.5, 0.0, torch.where(tail == 0, torch.inf, low.exp()))
    found = found.masked_fill(~(tail >= 0), torch.nan)
    return torch.where(levels < 0.5, -found, found)


NORMAL = Normal()
