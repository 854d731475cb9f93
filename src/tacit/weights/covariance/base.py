"""The base class of covariances: a linear map S from noise to a layer's parameters."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from tacit.weights.covariance.activation import ActivationNoise

Shapes: TypeAlias = Mapping[str, torch.Size]
"""The tensors of one layer: name -> shape, for instance weight and bias."""


def parameter_count(shapes: Shapes) -> int:
    """Return P, the number of parameters of a layer.

    Examples:
        >>> import torch
        >>> parameter_count({"weight": torch.Size([4, 8]), "bias": torch.Size([4])})
        36
    """
    return sum(math.prod(shape) for shape in shapes.values())


def rates_by_rank(
    factors: Mapping[str, Factor], rates: Mapping[str, float], family: str
) -> dict[str, float]:
    """Return the learning-rate factors for rank R: 1/R of the mean's with SGD, R^-1/2 with Adam.

    S z is a sum over R components. Scaled by R^-1/2 in the forward pass, it could be trained like a
    mean ("Proposed Scaling" in the paper). By Lemma J.1 of Tensor Programs V that is equivalent to
    initializing S at R^-1/2 of its scale and training it with these learning rates.
    """
    power = -1.0 if family == "sgd" else -0.5
    return {
        name: rates[factor.tensor] * factor.rank**power
        for name, factor in factors.items()
        if factor.tensor is not None
    }


def check_rank(structure: str, rank: int, shapes: Shapes) -> None:
    """Raise ValueError if a rank exceeds the number of parameters of a layer."""
    if rank > (P := parameter_count(shapes)):
        raise ValueError(
            f"{structure}: the rank can be at most the number of parameters, {P}; received {rank}."
        )


def singular_error(structure: object, shapes: Shapes) -> ValueError:
    """Return the error for a KL divergence that is infinite because covariances are singular."""
    return ValueError(
        f"KL: infinite, because the covariance of {structure} over {parameter_count(shapes)} "
        "parameters is singular. Use LowRankPlusDiagonal, Diagonal or FullRank, or the "
        "2-Wasserstein distance (GVI), which is always finite."
    )


@dataclass(frozen=True)
class Factor:
    """One of the trainable tensors from which a structure builds S.

    Args:
        shape: Shape of the factor.
        tensor: The layer's tensor whose initial scale the factor carries, or None if it carries
            none: in a Kronecker product only the input side does.
        rank: Number of noise components that are summed through the factor. It is initialized at
            rank^-1/2 of its scale, so that the size of S z doesn't depend on the rank.
        variance: Fraction of the tensor's initial variance that the factor carries.
        random: Whether its entries are initialized with normal draws of mean 0, or all with their
            standard deviation.
        per_unit: Whether it has one entry per input unit rather than per weight. Its gradient then
            shrinks with the width as that of a bias does, and under muP the learning rate of SGD
            grows with the width.

    Examples:
        >>> import tacit, torch
        >>> shapes = {"weight": torch.Size([4, 8])}
        >>> factor = tacit.LowRank(3).factors(shapes)["weight"]  # a weight for each of 3 components
        >>> factor.shape, factor.rank
        ((3, 4, 8), 3)
    """

    shape: tuple[int, ...]
    tensor: str | None
    rank: int = 1
    variance: float = 1.0
    random: bool = True
    per_unit: bool = False


class Covariance(ABC):
    """The structure of a covariance Sigma = S S^T over the P parameters of a layer.

    S is a linear map from K independent noise components to the parameters of a layer, weight and
    bias jointly: w = mean + S z. A structure holds settings only, no tensors. It defines which
    tensors S is built from, how S is applied, and what can be computed from S without forming it.

    To add one, write a frozen dataclass with a field `scale` and the abstract methods below, and
    test it with `tacit.testing.CovarianceSuite`.

    Examples:
        >>> import tacit, torch
        >>> structure = tacit.LowRank(3)
        >>> shapes = {"weight": torch.Size([4, 8]), "bias": torch.Size([4])}
        >>> factors = {name: torch.empty(f.shape) for name, f in structure.factors(shapes).items()}
        >>> structure.initialize(factors, {"weight": 0.1, "bias": 0.1}, shapes)
        >>> z = torch.randn(5, structure.noise_size(shapes))
        >>> structure.apply(factors, z, shapes)["weight"].shape
        torch.Size([5, 4, 8])
        >>> structure.dense(factors, shapes).shape  # P x P, for 36 parameters
        torch.Size([36, 36])
    """

    scale: float
    """Initial standard deviation of a weight, relative to its parametrization's."""

    speed: float = 1.0
    """Learning rate of the factors relative to the rate that their scaling gives them."""

    acts_on_activations: bool = False
    """Whether `in_activation_space` is defined."""

    def fitted(self, layer: nn.Module) -> Covariance:
        """Return the structure adapted to the type of a layer, for instance a transposed one."""
        return self

    @abstractmethod
    def factors(self, shapes: Shapes) -> dict[str, Factor]:
        """Return the trainable tensors of S for a layer.

        Args:
            shapes: The layer's tensors. Each factor's name begins with the name of one of them.

        Raises:
            ValueError: If the structure does not fit the layer.
        """

    def noisy_tensors(self, shapes: Shapes) -> list[str]:
        """Return the names of the layer's tensors that have noise."""
        return list(shapes)

    @abstractmethod
    def noise_size(self, shapes: Shapes) -> int:
        """Return K, the number of columns of S."""

    def resolve(
        self, mean: Mapping[str, Tensor], factors: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Return the tensors of S, which the methods below take as `factors`.

        They are the trained factors themselves, unless S depends on the mean.
        """
        return factors

    def in_activation_space(
        self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes
    ) -> Mapping[str, ActivationNoise]:
        """Return the noise of each tensor in a form that acts on activations.

        For structures with `acts_on_activations`.

        Args:
            factors: The trained factors, not resolved.
            z: Noise of shape (*sample, K).
            shapes: The layer's tensors. Those without noise are left out of the result.
        """
        raise NotImplementedError

    def flip_columns(
        self, factors: Mapping[str, Tensor], signs: Tensor, shapes: Shapes
    ) -> dict[str, Tensor] | None:
        """Return factors whose columns of S have the given signs; None if that is no cheaper.

        S diag(signs) z = S (signs z): with few factors, it costs less than signs in the noise of
        every example.

        Args:
            factors: The trained factors, not resolved.
            signs: Signs of the components of z, (K,).
            shapes: The layer's tensors.
        """
        return None

    @abstractmethod
    def apply(self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        """Return S z, split into the layer's tensors.

        Args:
            factors: The tensors that `factors(shapes)` describes.
            z: Noise of shape (*sample, K).
            shapes: The layer's tensors.

        Returns:
            For each tensor of the layer its part of S z, of shape (*sample, *shape).
        """

    def shift(
        self, mean: Mapping[str, Tensor], factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes
    ) -> dict[str, Tensor]:
        """Return mean + S z for each tensor of the layer; override it to fuse the sum.

        Args:
            mean: The layer's tensors.
            factors: The trained factors, not resolved.
            z: Noise of shape (*sample, K).
            shapes: The shapes of the layer's tensors.
        """
        deviation = self.apply(self.resolve(mean, factors), z, shapes)
        return {name: tensor + deviation[name] for name, tensor in mean.items()}

    def spectral_growth(self, shapes: Shapes) -> float:
        """Return the noise's largest singular value relative to that of independent noise.

        At the initial scale. `variational` refuses noise of few, large singular values under muP.
        """
        return 1.0

    @abstractmethod
    def trace(self, factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
        """Return tr(S S^T), the sum of the parameters' variances, without forming S."""

    @abstractmethod
    def squared_distance(
        self, factors: Mapping[str, Tensor], others: Mapping[str, Tensor], shapes: Shapes
    ) -> Tensor:
        """Return the squared 2-Wasserstein distance of N(0, S S^T) and N(0, S0 S0^T).

        |S|_F^2 + |S0|_F^2 - 2 |S0^T S|_*, with the nuclear norm |.|_*, without a P x P matrix. It
        equals min |S - S0 Q|_F^2 over orthogonal Q, which loses no digits to cancellation.

        Args:
            factors: The tensors of S.
            others: The tensors of S0.
            shapes: The layer's tensors.
        """

    @abstractmethod
    def kl(
        self,
        difference: Mapping[str, Tensor],
        factors: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        shapes: Shapes,
    ) -> Tensor:
        """Return KL(N(mean, S S^T) || N(mean0, S0 S0^T)).

        Args:
            difference: mean - mean0 for each tensor of the layer.
            factors: The tensors of S.
            others: The tensors of S0.
            shapes: The layer's tensors.

        Raises:
            ValueError: If it is infinite because the covariances are singular.
        """

    @abstractmethod
    def output_variance(
        self, factors: Mapping[str, Tensor], features: Tensor, shapes: Shapes
    ) -> Tensor:
        """Return the variance of each output of a linear layer, W x + b.

        Args:
            factors: The tensors of S.
            features: Inputs x of the layer, of shape (B, in).
            shapes: The layer's tensors: `weight` (out, in), `bias` (out,), or only one of them.

        Returns:
            Variances of shape (B, out).
        """

    @abstractmethod
    def learning_rates(
        self, shapes: Shapes, scales: Mapping[str, float], rates: Mapping[str, float], family: str
    ) -> dict[str, float]:
        """Return the learning-rate factors of the tensors that `factors(shapes)` describes.

        Args:
            shapes: The layer's tensors.
            scales: Their initial standard deviations, to be multiplied by this structure's `scale`.
            rates: The learning-rate factors of their means.
            family: "sgd" if steps are proportional to the gradient, "adam" if they are normalised
                elementwise.
        """

    def initialize(
        self,
        factors: Mapping[str, Tensor],
        scales: Mapping[str, float],
        shapes: Shapes,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """Initialize the factors in place so that each weight has expected variance scale^2.

        Args:
            factors: The tensors that `factors(shapes)` describes; overwritten.
            scales: For each tensor of the layer the standard deviation of its entries, to be
                multiplied by this structure's `scale`.
            shapes: The layer's tensors.
            generator: Source of randomness.
        """
        with torch.no_grad():
            for name, factor in self.factors(shapes).items():
                scale = 1.0 if factor.tensor is None else self.scale * scales[factor.tensor]
                std = scale * math.sqrt(factor.variance / factor.rank)
                if factor.random:
                    factors[name].normal_(0.0, std, generator=generator)
                else:
                    factors[name].fill_(std)

    def dense_factor(self, factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
        """Return S as a matrix of shape (P, K), whose columns are the images of unit vectors."""
        like, K = next(iter(factors.values())), self.noise_size(shapes)
        unit = torch.eye(K, dtype=like.dtype, device=like.device)
        columns = self.apply(factors, unit, shapes)
        return torch.cat([columns[name].reshape(K, -1) for name in shapes], dim=1).T

    def dense(self, factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
        """Return Sigma = S S^T of shape (P, P); only for small layers."""
        S = self.dense_factor(factors, shapes)
        return S @ S.T
