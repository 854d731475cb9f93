"""Kronecker-structured covariance: one factor for the inputs, one for the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit._support import checks
from tacit.weights.covariance.activation import Added
from tacit.weights.covariance.base import Covariance, Factor, Shapes, singular_error
from tacit.weights.covariance.dense import rotated, rows, solve
from tacit.weights.covariance.low_rank import contract
from tacit.weights.covariance.two_sided import matrix_size, output_name


@dataclass(frozen=True)
class Kronecker(Covariance):
    """A matrix-normal layer: W = mean + B Z A^T with independent noise Z.

    **Definition.** A weight of shape (out, in, *kernel) is flattened to a matrix of shape
    (out, in * prod(kernel)), the bias is appended as a column, and W is the result, with n columns.
    With A of shape (n, R_in), B of shape (out, R_out) and Z of shape (R_out, R_in),

        Cov[W_ij, W_kl] = (B B^T)_ik (A A^T)_jl.

    With vec stacking columns, Cov[vec W] = A A^T (x) B B^T and S = A (x) B. Hence
    E[(W - mean)(W - mean)^T] = tr(A A^T) B B^T and E[(W - mean)^T (W - mean)] = tr(B B^T) A A^T.

    Any tensors with the same first dimension fit: the gates of an LSTM, the packed projections of
    attention, an embedding, a norm layer. (The first dimension of a transposed convolution's weight
    is its input, so A and B swap roles there, and a layer with a bias does not fit.)

    **Width.** B Z A^T has few singular values, so the largest is about sqrt(width/R) times that of
    independent noise of the same size; see `spectral_growth`. Between two wide layers and with
    fixed ranks, what the preceding layer learns through the noise is amplified by that factor,
    whatever the learning rates of the factors, even 0. `variational` refuses it under muP. Let the
    ranks grow with the width, or set `scale=` to width^-1/2.

    A is stored in the shapes of the layer's tensors, rank first: `weight_input` (R_in, in, *kernel)
    and `bias_input` (R_in,); B as `weight_output` (R_out, out). That is R_in n + R_out out entries.

    Args:
        input_rank: Rank R_in of A A^T, at most n.
        output_rank: Rank R_out of B B^T, at most out.
        scale: Initial standard deviation of a weight, relative to its parametrization's. A carries
            it; the rows of B initially have expected length 1.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Conv2d(3, 8, 5), {"": Kronecker(4, 2)})
        >>> {name: tuple(factor.shape) for name, factor in model.factors.named_parameters()}
        {'weight_input': (4, 3, 5, 5), 'bias_input': (4,), 'weight_output': (2, 8)}
    """

    input_rank: int
    output_rank: int
    scale: float = 1.0
    acts_on_activations = True

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "input_rank", checks.positive_integer("Kronecker(input_rank)", self.input_rank)
        )
        object.__setattr__(
            self, "output_rank", checks.positive_integer("Kronecker(output_rank)", self.output_rank)
        )
        object.__setattr__(self, "scale", checks.positive_number("Kronecker(scale)", self.scale))

    def factors(self, shapes: Shapes) -> dict[str, Factor]:
        out, columns = matrix_size("Kronecker", shapes)
        if self.input_rank > columns or self.output_rank > out:
            raise ValueError(
                f"Kronecker: the ranks can be at most {columns} for the input and {out} for the "
                f"output, received {self.input_rank} and {self.output_rank}."
            )
        sides = {
            f"{name}_input": Factor((self.input_rank, *shape[1:]), name, self.input_rank)
            for name, shape in shapes.items()
        }
        sides[output_name(shapes)] = Factor((self.output_rank, out), None, self.output_rank)
        return sides

    def noise_size(self, shapes: Shapes) -> int:
        return self.output_rank * self.input_rank

    def apply(self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        Z = z.unflatten(-1, (self.output_rank, self.input_rank))
        BZ = factors[output_name(shapes)].T @ Z  # (*sample, out, R_in)
        return {
            name: contract(BZ, factors[f"{name}_input"]).reshape((*z.shape[:-1], *shape))
            for name, shape in shapes.items()
        }

    def in_activation_space(
        self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes
    ) -> dict[str, Added]:
        Z = z.unflatten(-1, (self.output_rank, self.input_rank))
        outputs = factors[output_name(shapes)]
        return {
            name: Added(factors[f"{name}_input"], outputs, Z, diagonal=False) for name in shapes
        }

    def spectral_growth(self, shapes: Shapes) -> float:
        """Return the noise's largest singular value relative to that of independent noise.

        Entries of size s give independent noise the norm s (sqrt(out) + sqrt(n)). The norm of A is
        about s sqrt(n/R_in), that of B sqrt(out/R_out), and that of Z sqrt(R_in) + sqrt(R_out). The
        ratio is 1 for full ranks, and sqrt(width/R) for ranks R in a square layer. It includes
        `scale`.

        Under muP the preceding layer's step moves its output h by a multiple of W^T g, with the
        gradient g of W h. W h then moves by W W^T g, which is the same at every width only if the
        norm of W is (the spectral condition of Yang, Simon and Bernstein, 2023). The learning rates
        of A and B do not enter, so they can't restore it.
        """
        out, columns = matrix_size("Kronecker", shapes)
        R_in, R_out = self.input_rank, self.output_rank
        A, B, Z = (columns / R_in) ** 0.5, (out / R_out) ** 0.5, R_in**0.5 + R_out**0.5
        return float(self.scale * A * B * Z / (out**0.5 + columns**0.5))

    def trace(self, factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
        trace_A = torch.stack([factors[f"{name}_input"].square().sum() for name in shapes]).sum()
        return trace_A * factors[output_name(shapes)].square().sum()

    def squared_distance(
        self, factors: Mapping[str, Tensor], others: Mapping[str, Tensor], shapes: Shapes
    ) -> Tensor:
        # The closest rotation is the product of the closest rotations of both sides. The norm of
        # A (x) B - A0 (x) B0 = (A - A0) (x) B + A0 (x) (B - B0) is then free of cancellation.
        (A, B), (A0, B0) = _sides(factors, shapes), _sides(others, shapes)
        A0, B0 = rotated(A0, A), rotated(B0, B)
        a, b = A - A0, B - B0
        squares = a.square().sum() * B.square().sum() + A0.square().sum() * b.square().sum()
        return squares + 2 * (a * A0).sum() * (B * b).sum()

    def kl(
        self,
        difference: Mapping[str, Tensor],
        factors: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        shapes: Shapes,
    ) -> Tensor:
        (A, B), (A0, B0) = _sides(factors, shapes), _sides(others, shapes)
        (n, R_in), (out, R_out) = A.shape, B.shape
        if R_in < n or R_out < out:
            raise singular_error(self, shapes)
        # As for square factors, with T = A0^-1 A (x) B0^-1 B and d = vec(D).
        D = torch.cat([difference[name].reshape(out, -1) for name in shapes], dim=1)
        TA, TB, d = solve(A0, A), solve(B0, B), solve(A0, solve(B0, D).T)
        squares = TA.square().sum() * TB.square().sum() + d.square().sum()
        log_det = out * torch.linalg.slogdet(TA)[1] + n * torch.linalg.slogdet(TB)[1]
        kl: Tensor = (squares - n * out) / 2 - log_det
        return kl.to(A.dtype)

    def output_variance(
        self, factors: Mapping[str, Tensor], features: Tensor, shapes: Shapes
    ) -> Tensor:
        sides = features.new_zeros(())  # (B, R_in) after the first term
        if "weight" in shapes:
            sides = sides + features @ factors["weight_input"].T
        if "bias" in shapes:
            sides = sides + factors["bias_input"]
        output = factors[output_name(shapes)].square().sum(0)
        return (sides.square().sum(-1, keepdim=True) * output).expand(len(features), -1)

    def learning_rates(
        self, shapes: Shapes, scales: Mapping[str, float], rates: Mapping[str, float], family: str
    ) -> dict[str, float]:
        """Return a learning-rate factor for each side.

        With the gradient G of W, an SGD step with rate a on A changes W by a B Z Z^T B^T G, and one
        with rate b on B by b G A Z^T Z A^T. Z Z^T is about R_in times the identity, Z^T Z about
        R_out times. The rows of B have length 1, so B B^T has eigenvalues of about out/R_out; those
        of A A^T are about tr(A A^T)/R_in, with the trace at the initial scales. W changes as much
        as in a step with the mean's rate r if

            a = r R_out / (R_in out)    and    b = r R_in / (R_out tr(A A^T)).

        With the mean's rate for both, B B^T would multiply the step by the width. Adam moves every
        entry by its rate; each side changes by the same fraction of its size as the mean if

            a = r R_in^-1/2    and    b = r R_out^-1/2 / scale.
        """
        first = next(iter(shapes))
        scales = {name: self.scale * scale for name, scale in scales.items()}
        R_in, R_out = self.input_rank, self.output_rank
        if family == "adam":
            sides = {f"{name}_input": rates[name] * R_in**-0.5 for name in shapes}
            return {**sides, output_name(shapes): rates[first] * R_out**-0.5 / scales[first]}
        out, _ = matrix_size("Kronecker", shapes)
        trace = sum(scales[name] ** 2 * shapes[name].numel() / out for name in shapes)
        sides = {f"{name}_input": rates[name] * R_out / (R_in * out) for name in shapes}
        return {**sides, output_name(shapes): rates[first] * R_in / (R_out * trace)}


def _sides(factors: Mapping[str, Tensor], shapes: Shapes) -> tuple[Tensor, Tensor]:
    """Return A of shape (n, R_in) and B of shape (out, R_out)."""
    inputs = {name: factors[f"{name}_input"] for name in shapes}
    return rows(inputs, shapes).T, factors[output_name(shapes)].T
