"""Gaussians and the distances between them, from their definitions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Normal:
    """The Gaussian N(mean, S S^T).

    Args:
        mean: Vector of length P.
        factor: S, of shape (P, R).

    Examples:
        >>> import torch
        >>> q = Normal(torch.zeros(3), torch.tensor([[1.0], [2.0], [0.0]]))  # rank 1
        >>> q.predict(torch.eye(3))[1].tolist()  # the variance of each weight
        [1.0, 4.0, 0.0]
    """

    mean: Tensor
    factor: Tensor

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.factor.ndim != 2 or len(self.mean) != len(self.factor):
            raise ValueError(
                "Normal: expected a mean of shape (P,) and a factor of shape (P, R), received "
                f"{tuple(self.mean.shape)} and {tuple(self.factor.shape)}."
            )
        object.__setattr__(self, "mean", self.mean.detach().double())
        object.__setattr__(self, "factor", self.factor.detach().double())

    @property
    def covariance(self) -> Tensor:
        """S S^T, of shape (P, P)."""
        return self.factor @ self.factor.T

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of x^T w at each row of x, (B,) and (B,)."""
        return x.double() @ self.mean, (x.double() @ self.factor).square().sum(1)

    def project(self, projection: Tensor) -> Normal:
        """Return the distribution of `projection` @ w."""
        return Normal(projection @ self.mean, projection @ self.factor)


def kl(q: Normal, p: Normal) -> float:
    """Return KL(q || p), infinite if q and p have different supports.

    For singular covariances with a common support, it is the KL divergence of the densities on it.

    Examples:
        >>> import torch
        >>> p, q = Normal(torch.zeros(2), torch.eye(2)), Normal(torch.ones(2), torch.eye(2))
        >>> kl(q, p), kl(Normal(torch.zeros(2), torch.ones(2, 1)), p)  # the last is singular
        (1.0, inf)
    """
    values, basis = torch.linalg.eigh(p.covariance)
    kept = basis[:, values > values.max() * len(values) * torch.finfo(torch.float64).eps]
    dimension = kept.shape[1]
    off = torch.eye(len(values), dtype=torch.float64) - kept @ kept.T
    size = p.covariance.trace().sqrt()
    if (off @ q.factor).norm() > 1e-9 * size or (off @ (q.mean - p.mean)).norm() > 1e-9 * size:
        return math.inf
    if torch.linalg.matrix_rank(kept.T @ q.factor) < dimension:
        return math.inf  # q has no variance in some direction in which p does
    P, Q = (kept.T @ d.covariance @ kept for d in (p, q))
    difference = kept.T @ (q.mean - p.mean)
    log_ratio = torch.linalg.slogdet(torch.linalg.solve(P, Q))[1]
    quadratic = difference @ torch.linalg.solve(P, difference)
    trace = torch.linalg.solve(P, Q).trace()
    return 0.5 * float(trace + quadratic - dimension - log_ratio)


def squared_wasserstein(q: Normal, p: Normal) -> float:
    """Return the squared 2-Wasserstein distance by its closed form for Gaussians.

    |mu - mu0|^2 + tr(Sigma + Sigma0 - 2 (Sigma^1/2 Sigma0 Sigma^1/2)^1/2).

    Examples:
        >>> import torch
        >>> p = Normal(torch.zeros(2), torch.eye(2))
        >>> squared_wasserstein(Normal(torch.zeros(2), torch.zeros(2, 1)), p)  # finite for any rank
        2.0
    """
    root = _root(q.covariance)
    cross = _root(root @ p.covariance @ root).trace()
    distance = (q.mean - p.mean).square().sum()
    return (distance + q.covariance.trace() + p.covariance.trace() - 2 * cross).item()


def squared_wasserstein_by_factors(q: Normal, p: Normal) -> float:
    """Return the squared 2-Wasserstein distance from the factors, without forming a P x P matrix.

    The eigenvalues of Sigma^1/2 Sigma0 Sigma^1/2 are the squared singular values of S0^T S, so the
    trace of its root is the nuclear norm, the sum of those singular values:
    |mu - mu0|^2 + |S|_F^2 + |S0|_F^2 - 2 |S0^T S|_*.

    Examples:
        >>> import torch
        >>> q, p = Normal(torch.ones(2), 3 * torch.eye(2)), Normal(torch.zeros(2), torch.eye(2))
        >>> squared_wasserstein_by_factors(q, p)  # 2 + 2 (3 - 1)^2
        10.0
    """
    distance = (q.mean - p.mean).square().sum()
    nuclear = torch.linalg.svdvals(p.factor.T @ q.factor).sum()
    return float(distance + q.factor.square().sum() + p.factor.square().sum() - 2 * nuclear)


def squared_wasserstein_by_subspaces(
    q: Normal, p: Normal, basis: Tensor
) -> tuple[float, float, float]:
    """Return the three terms of the squared distance if q has no variance on a subspace.

    Lemma S1, claim `w2-subspace`: let V_A be an orthonormal basis of the subspace, V_B one of its
    complement, and V_A^T Sigma V_A = 0. Then the squared 2-Wasserstein distance is
    |V_A^T (mu - mu0)|^2, plus the squared distance of the distributions projected by V_B, plus the
    constant tr(V_A^T Sigma0 V_A).

    Args:
        q: A distribution without variance on the subspace.
        p: Any distribution.
        basis: V_A, a matrix with orthonormal columns and P rows.

    Raises:
        ValueError: If q has variance on the subspace.

    Examples:
        >>> import torch
        >>> q = Normal(torch.tensor([2.0, 0.0]), torch.tensor([[0.0], [1.0]]))
        >>> p = Normal(torch.zeros(2), torch.eye(2))
        >>> squared_wasserstein_by_subspaces(q, p, torch.tensor([[1.0], [0.0]]))
        (4.0, 0.0, 1.0)
    """
    basis = basis.double()
    if (basis.T @ q.factor).norm() > 1e-8 * max(1.0, q.factor.norm().item()):
        raise ValueError("squared_wasserstein_by_subspaces: q has variance on the subspace.")
    complement = torch.linalg.svd(basis, full_matrices=True)[0][:, basis.shape[1] :]
    on = (basis.T @ (q.mean - p.mean)).square().sum().item()
    off = squared_wasserstein(q.project(complement.T), p.project(complement.T))
    return on, off, (basis.T @ p.factor).square().sum().item()


def _root(matrix: Tensor) -> Tensor:
    """Return the symmetric square root of a positive semi-definite matrix."""
    values, basis = torch.linalg.eigh((matrix + matrix.T) / 2)
    root: Tensor = (basis * values.clamp_min(0).sqrt()) @ basis.T
    return root
