"""Low-rank covariance plus independent noise for every parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tacit._support import checks
from tacit.weights.covariance.base import Covariance, Factor, Shapes, check_rank, rates_by_rank
from tacit.weights.covariance.dense import rows, vector
from tacit.weights.covariance.diagonal import Diagonal
from tacit.weights.covariance.low_rank import LowRank

NODES, STEP = 80, 0.35  # trapezoidal rule: nodes on each side, spacing; errors of about exp(-28)
CHUNK = 8  # nodes evaluated at a time


@dataclass(frozen=True)
class LowRankPlusDiagonal(Covariance):
    """The sum of a low-rank and a diagonal covariance: S = [S_low, diag(s)].

    Never singular while no s_p is zero, so the KL divergence between two of them is finite. Each
    part initially has half of the variance. The factors are named `weight` (low rank, as in
    `LowRank`) and `weight_diagonal`.

    Args:
        rank: Number of directions of the low-rank part.
        scale: Initial standard deviation of a weight, relative to its parametrization's.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(8, 4), {"": LowRankPlusDiagonal(3)})
        >>> model.factors.weight.shape, model.factors.weight_diagonal.shape
        (torch.Size([3, 4, 8]), torch.Size([4, 8]))
    """

    rank: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "rank", checks.positive_integer("LowRankPlusDiagonal(rank)", self.rank)
        )
        object.__setattr__(
            self, "scale", checks.positive_number("LowRankPlusDiagonal(scale)", self.scale)
        )

    def factors(self, shapes: Shapes) -> dict[str, Factor]:
        check_rank("LowRankPlusDiagonal", self.rank, shapes)
        low = self._low.factors(shapes)
        diagonal = _suffixed(Diagonal().factors(shapes))
        return {name: replace(factor, variance=0.5) for name, factor in {**low, **diagonal}.items()}

    def noise_size(self, shapes: Shapes) -> int:
        return self.rank + Diagonal().noise_size(shapes)

    def apply(self, factors: Mapping[str, Tensor], z: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        low = self._low.apply(factors, z[..., : self.rank], shapes)
        diagonal = Diagonal().apply(_unsuffixed(factors, shapes), z[..., self.rank :], shapes)
        return {name: low[name] + diagonal[name] for name in shapes}

    def trace(self, factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
        diagonal = Diagonal().trace(_unsuffixed(factors, shapes), shapes)
        return self._low.trace(factors, shapes) + diagonal

    def squared_distance(
        self, factors: Mapping[str, Tensor], others: Mapping[str, Tensor], shapes: Shapes
    ) -> Tensor:
        """Return the squared distance, with the nuclear norm as an integral of R x R determinants.

        The norm is tr M^1/2 for M = Sigma0 Sigma, where Sigma = D^2 + L L^T. From
        sqrt(m) - sqrt(a) = 1/pi int_0^inf log((m + t^2) / (a + t^2)) dt,

            tr M^1/2 = sum |d0 d| + 1/pi int_0^inf log det((M + t^2) (D0^2 D^2 + t^2)^-1) dt.

        M + t^2 is the Schur complement of [[t, Sigma0], [-Sigma, t]], a low-rank update of the same
        matrix with D0^2 and D^2. By the determinant lemma, with w = 1 / (d0^2 d^2 + t^2), the ratio
        is det(I + A) det(I + B + t^2 G^T (I + A)^-1 G), where A = L0^T (w d^2) L0,
        B = L^T (w d0^2) L and G = L0^T w L: positive definite, so nothing cancels.

        With t = tau exp(u) the integrand is analytic for |Im u| < pi/2 and decays like exp(-|u|),
        so the trapezoidal rule converges geometrically. Computed in double precision.
        """
        (L, d), (L0, d0) = (self._parts(given, shapes) for given in (factors, others))
        # tau is the square root of the mean eigenvalue of M, tr(M) / P.
        trace = (d * d0).square().sum() + (L0.T @ L).square().sum()
        trace = trace + (d[:, None] * L0).square().sum() + (d0[:, None] * L).square().sum()
        tau = (trace / len(d)).detach().sqrt().clamp_min(1e-30)
        nodes = torch.arange(-NODES, NODES + 1, dtype=d.dtype, device=d.device)
        # A few nodes at a time, recomputed in the backward pass: storing all nodes would take about
        # a thousand values per parameter.
        integral = torch.stack(
            [
                checkpoint(_integrate, t, L, d, L0, d0, use_reentrant=False)
                for t in (tau * torch.exp(STEP * nodes)).split(CHUNK)
            ]
        ).sum()
        nuclear = (d * d0).abs().sum() + integral / math.pi
        squares = sum(part.square().sum() for part in (L, d, L0, d0))
        return (squares - 2 * nuclear).to(next(iter(factors.values())).dtype)

    def kl(
        self,
        difference: Mapping[str, Tensor],
        factors: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        shapes: Shapes,
    ) -> Tensor:
        # Woodbury: Sigma0^-1 = D0^-2 - G C0^-1 G^T with G = D0^-2 L0 and C0 = I + L0^T G.
        (L, d), (L0, d0) = (self._parts(given, shapes) for given in (factors, others))
        delta = vector(difference, shapes).double()
        C, C0 = _capacitance(L, d), _capacitance(L0, d0)
        G = L0 / d0[:, None].square()
        stacked = torch.cat([L, delta[:, None]], dim=1)
        outer = G.T @ stacked
        through = outer @ outer.T + (G * d[:, None]).T @ (G * d[:, None])
        squares = (d / d0).square().sum() + (stacked / d0[:, None]).square().sum()
        squares = squares - torch.linalg.solve(C0, through).trace()
        log_det = 2 * (d / d0).abs().log().sum()
        log_det = log_det + torch.linalg.slogdet(C)[1] - torch.linalg.slogdet(C0)[1]
        kl: Tensor = (squares - len(d) - log_det) / 2
        return kl.to(next(iter(factors.values())).dtype)

    def output_variance(
        self, factors: Mapping[str, Tensor], features: Tensor, shapes: Shapes
    ) -> Tensor:
        diagonal = _unsuffixed(factors, shapes)
        return self._low.output_variance(factors, features, shapes) + Diagonal().output_variance(
            diagonal, features, shapes
        )

    def learning_rates(
        self, shapes: Shapes, scales: Mapping[str, float], rates: Mapping[str, float], family: str
    ) -> dict[str, float]:
        return rates_by_rank(self.factors(shapes), rates, family)

    def _parts(self, factors: Mapping[str, Tensor], shapes: Shapes) -> tuple[Tensor, Tensor]:
        """Return L of shape (P, R) and the diagonal of D, in double precision."""
        diagonal = vector(_unsuffixed(factors, shapes), shapes)
        return rows(factors, shapes).T.double(), diagonal.double()

    @property
    def _low(self) -> LowRank:
        return LowRank(self.rank)


def _capacitance(L: Tensor, d: Tensor) -> Tensor:
    """Return I + L^T D^-2 L: its determinant is that of Sigma over that of D^2."""
    scaled = L / d[:, None]
    return torch.eye(L.shape[1], dtype=L.dtype, device=L.device) + scaled.T @ scaled


def _integrate(t: Tensor, L: Tensor, d: Tensor, L0: Tensor, d0: Tensor) -> Tensor:
    """Return the trapezoidal rule's sum over the nodes t."""
    w = 1 / ((d * d0).square() + t[:, None].square())  # (nodes, P)
    A = _weighted_product(L0, w * d.square(), L0)
    B = _weighted_product(L, w * d0.square(), L)
    G = _weighted_product(L0, w * t[:, None], L)
    # At the smallest t, which contribute little, the identity may vanish in rounding beside A. A
    # last digit of A on the diagonal keeps the solver from finding I + A singular.
    diagonal = 1 + 1e-15 * A.detach().diagonal(dim1=-2, dim2=-1).sum(-1)
    identity = torch.eye(L.shape[1], dtype=L.dtype, device=L.device)
    B = B + G.mT @ torch.linalg.solve(diagonal[:, None, None] * identity + A, G)
    return STEP * (t * (_log_det_of_identity_plus(A) + _log_det_of_identity_plus(B))).sum()


def _weighted_product(left: Tensor, weights: Tensor, right: Tensor) -> Tensor:
    """Return left^T diag(w) right for each row w of `weights`: (nodes, R, R)."""
    products = (left[:, :, None] * right[:, None, :]).flatten(1)  # (P, R^2)
    product: Tensor = weights @ products
    return product.reshape(-1, left.shape[1], right.shape[1])


def _log_det_of_identity_plus(A: Tensor) -> Tensor:
    """Return log det(I + A) of positive semi-definite matrices, accurate also for small A."""
    values: Tensor = torch.linalg.eigvalsh((A + A.mT) / 2)
    return values.clamp_min(0).log1p().sum(-1)


def _suffixed(factors: Mapping[str, Factor]) -> dict[str, Factor]:
    return {f"{name}_diagonal": factor for name, factor in factors.items()}


def _unsuffixed(factors: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
    return {name: factors[f"{name}_diagonal"] for name in shapes}
