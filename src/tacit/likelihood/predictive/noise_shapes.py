"""Shapes of the observation noise, as distributions with location 0 and scale 1."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

STEPS = 60  # of bisection for a quantile, enough for double precision


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
        found = [_student_quantile(self.df, level) for level in levels.tolist()]
        return torch.tensor(found, dtype=torch.float64, device=q.device)[positions].to(q)

    def distance(self, z: Tensor) -> Tensor:
        density = self.log_density(z).exp()
        return z * (2 * self.cdf(z) - 1) + 2 * density * (self.df + z.square()) / (self.df - 1)

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

    def sample(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        uniform = torch.rand(
            like.shape, generator=generator, dtype=torch.float64, device=like.device
        )
        eps = torch.finfo(torch.float64).eps
        return self.quantile(uniform.clamp(eps, 1 - eps)).to(like)


@lru_cache(maxsize=256)
def _student_quantile(df: int, level: float) -> float:
    """Return a quantile by bisection; training asks for the same ones after each epoch."""
    noise, tail = StudentT(df), min(level, 1 - level)
    if not 0 < tail < 0.5:
        return math.copysign(math.inf, level - 0.5) if tail < 0.5 else 0.0

    def cdf(z: float) -> float:
        return noise.cdf(torch.tensor(z, dtype=torch.float64)).item()

    low, high = -1.0, 0.0
    while cdf(low) > tail and low > -1e15:  # beyond, the distribution function rounds
        low *= 4
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle) < tail else (low, middle)
    return low if level < 0.5 else -low


NORMAL = Normal()
