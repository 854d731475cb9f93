"""Sums of rank-one matrices: a low-rank covariance that takes little memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit._support import checks
from tacit.weights.covariance.activation import Added
from tacit.weights.covariance.base import (
    Covariance,
    Factor,
    Shapes,
    check_rank,
    parameter_count,
    singular_error,
)
from tacit.weights.covariance.dense import kl_of_square_factors, rotated, vector
from tacit.weights.covariance.low_rank import contract
from tacit.weights.covariance.two_sided import matrix_size, output_name


@dataclass(frozen=True)
class RankOneSum(Covariance):
    """A low-rank covariance whose directions are rank-one matrices: W = mean + B diag(z) A^T.

    **Definition.** A weight of shape (out, in, *kernel) is flattened to a matrix of shape
    (out, in * prod(kernel)), the bias is appended as a column, and W is the result, with n columns.
    With columns a_r of A, (n, R), and b_r of B, (out, R), W = mean + sum_r z_r b_r a_r^T and

        Cov[W_ij, W_kl] = sum_r b_ir a_jr b_kr a_lr.

    It is `LowRank` with directions vec(b_r a_r^T), which have n + out entries instead of n out, and
    `Kronecker` with a diagonal Z. In activation space it adds B (z * A^T x) to the output of the
    layer: two thin products, with an own z for every example.

    Any tensors with the same first dimension fit, as for `Kronecker`. So does its remark on the
    width: at a fixed rank the noise has few singular values, each about sqrt(width/R) times as
    large as those of independent noise, and `variational` refuses it in hidden layers under muP
    unless the rank grows with the width.

    A is stored in the shapes of the layer's tensors, rank first: `weight_input` (R, in, *kernel)
    and `bias_input` (R,); B as `weight_output` (R, out).

    Args:
        rank: Number of terms R, at most the number of parameters.
        scale: Initial standard deviation of a weight, relative to its parametrization's. A carries
            it; the entries of B initially have variance 1.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Conv2d(3, 8, 5), {"": RankOneSum(4)})
        >>> {name: tuple(factor.shape) for name, factor in model.factors.named_parameters()}
        {'weight_input': (4, 3, 5, 5), 'bias_input': (4,), 'weight_output': (4, 8)}
    """

    rank: int
    scale: float = 1.0
    acts_on_activations = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", checks.positive_integer("RankOneSum(rank)", self.rank))
        object.__setattr__(self, "scale", checks.positive_number("RankOneSum(scale)", self.scale))

    def factors(self, shapes: Shapes) -> dict[str, Factor]:
        out, _ = matrix_size("RankOneSum", shapes)
        check_rank("RankOneSum", self.rank, shapes)
        sides = {
            f"{name}_input": Factor((self.rank, *shape[1:]), name, self.rank)
            for name, shape in shapes.items()
        }
        return {**sides, output_name(shapes): Factor((self.rank, out), None)}

    def noise_size(self, shapes: Shapes) -> int:
        return self.rank

    def apply(self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        BZ = factors[output_name(shapes)].T * z.unsqueeze(-2)  # (*sample, out, R)
        return {
            name: contract(BZ, factors[f"{name}_input"]).reshape((*z.shape[:-1], *shape))
            for name, shape in shapes.items()
        }

    def in_activation_space(
        self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes
    ) -> dict[str, Added]:
        outputs = factors[output_name(shapes)]
        return {name: Added(factors[f"{name}_input"], outputs, z, diagonal=True) for name in shapes}

    def spectral_growth(self, shapes: Shapes) -> float:
        """Return the noise's largest singular value relative to that of independent noise.

        Entries of size s give independent noise the norm s (sqrt(out) + sqrt(n)). One term has the
        norm |z_r| s sqrt(out n / R), and the largest of R |z_r| is about sqrt(2 log R). Many terms
        together approach independent noise.
        """
        out, columns = matrix_size("RankOneSum", shapes)
        term = (out * columns / self.rank) ** 0.5 / (out**0.5 + columns**0.5)
        largest = max(1.0, math.sqrt(2 * math.log(self.rank)))
        return float(self.scale * max(1.0, largest * term))

    def trace(self, factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
        lengths = torch.stack(
            [factors[f"{name}_input"].reshape(self.rank, -1).square().sum(1) for name in shapes]
        ).sum(0)
        return (lengths * factors[output_name(shapes)].square().sum(1)).sum()

    def squared_distance(
        self, factors: Mapping[str, Tensor], others: Mapping[str, Tensor], shapes: Shapes
    ) -> Tensor:
        S, S0 = self.dense_factor(factors, shapes), self.dense_factor(others, shapes)
        return (S - rotated(S0, S)).square().sum()

    def kl(
        self,
        difference: Mapping[str, Tensor],
        factors: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        shapes: Shapes,
    ) -> Tensor:
        if self.rank < parameter_count(shapes):
            raise singular_error(self, shapes)
        S, S0 = self.dense_factor(factors, shapes), self.dense_factor(others, shapes)
        return kl_of_square_factors(vector(difference, shapes), S, S0)

    def output_variance(
        self, factors: Mapping[str, Tensor], features: Tensor, shapes: Shapes
    ) -> Tensor:
        sides = features.new_zeros(())  # (B, R) after the first term
        if "weight" in shapes:
            sides = sides + features @ factors["weight_input"].T
        if "bias" in shapes:
            sides = sides + factors["bias_input"]
        output = factors[output_name(shapes)].square()
        return (sides.square() @ output).expand(len(features), -1)

    def learning_rates(
        self, shapes: Shapes, scales: Mapping[str, float], rates: Mapping[str, float], family: str
    ) -> dict[str, float]:
        """Return a learning-rate factor for each side.

        With the gradient G of W, an SGD step with rate a on A changes W by a B diag(z^2) B^T G, and
        one with rate b on B by b G A diag(z^2) A^T, with E[z^2] = 1. Entries of variance 1 give
        B B^T eigenvalues of about out if the rank is small, of about R if it is large. Those of
        A A^T are about tr(A A^T)/R or tr(A A^T)/n. In the directions of the noise W changes at most
        as much as in a step with the mean's rate r if

            a = r / (out + R)    and    b = r / (tr(A A^T) (1/R + 1/n)).

        Adam moves every entry by its rate; each side changes by the same fraction of its size as
        the mean if

            a = r R^-1/2    and    b = r / scale.
        """
        first = next(iter(shapes))
        scales = {name: self.scale * scale for name, scale in scales.items()}
        if family == "adam":
            sides = {f"{name}_input": rates[name] * self.rank**-0.5 for name in shapes}
            return {**sides, output_name(shapes): rates[first] / scales[first]}
        out, columns = matrix_size("RankOneSum", shapes)
        trace = sum(scales[name] ** 2 * shapes[name].numel() / out for name in shapes)
        largest = trace * (1 / self.rank + 1 / columns)
        sides = {f"{name}_input": rates[name] / (out + self.rank) for name in shapes}
        return {**sides, output_name(shapes): rates[first] / largest}
