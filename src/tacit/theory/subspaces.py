"""Projections onto the span of the data and onto its complement."""

from __future__ import annotations

import torch
from torch import Tensor


def row_basis(X: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of the rows of X, as columns (P, rank).

    Examples:
        >>> import torch
        >>> row_basis(torch.tensor([[3.0, 0.0], [6.0, 0.0]])).abs().tolist()  # rank 1
        [[1.0], [0.0]]
    """
    _, values, Vt = torch.linalg.svd(X.double(), full_matrices=False)
    tolerance = X.double().norm() * max(X.shape) * torch.finfo(torch.float64).eps
    basis: Tensor = Vt[values > tolerance].T
    return basis


def range_projection(X: Tensor) -> Tensor:
    """Return P_range, the orthogonal projection onto the span of the rows of X, (P, P).

    Examples:
        >>> import torch
        >>> range_projection(torch.tensor([[3.0, 0.0]])).tolist()
        [[1.0, 0.0], [0.0, 0.0]]
    """
    V = row_basis(X)
    return V @ V.T


def null_projection(X: Tensor) -> Tensor:
    """Return P_null = I - P_range, the orthogonal projection onto the null space of X, (P, P).

    Examples:
        >>> null_projection(torch.tensor([[3.0, 0.0]]))
        tensor([[0., 0.],
                [0., 1.]], dtype=torch.float64)
    """
    return torch.eye(X.shape[1], dtype=torch.float64) - range_projection(X)


def null_projection_from_factor(S: Tensor, tolerance: float = 1e-6) -> Tensor:
    """Return the projection onto the span of the columns of a trained factor.

    At convergence the predictions at the data have no variance, X S = 0, so the span of S lies in
    the null space of X; for R = P the two are equal (section "NLL Overfitting and the Need for
    Scaling"). A QR decomposition of S costs O(P R^2), and the singular values of its triangular
    factor tell which directions remain.

    Args:
        S: Factor of shape (P, R).
        tolerance: Singular values of S up to this share of its Frobenius norm count as collapsed.

    Examples:
        >>> import torch
        >>> S = torch.tensor([[1e-9, 0.0], [0.0, 2.0]])  # a direction has collapsed
        >>> null_projection_from_factor(S).round(decimals=6).abs().tolist()
        [[0.0, 0.0], [0.0, 1.0]]
    """
    Q, small = torch.linalg.qr(S.double())
    U, values, _ = torch.linalg.svd(small)
    kept: Tensor = Q @ U[:, values > tolerance * small.norm()]
    return kept @ kept.T
