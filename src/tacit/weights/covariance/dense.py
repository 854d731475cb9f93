"""Dense matrix operations shared by structures: flattening, Procrustes, KL of square factors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tacit.weights.covariance.base import Shapes


def rows(factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
    """Return factors of shape (R, *shape) concatenated to one matrix (R, P)."""
    return torch.cat([factors[name].reshape(len(factors[name]), -1) for name in shapes], dim=1)


def vector(tensors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
    """Return the layer's tensors concatenated to one vector of length P."""
    return torch.cat([tensors[name].reshape(-1) for name in shapes])


def rotated(S0: Tensor, S: Tensor) -> Tensor:
    """Return S0 Q for the orthogonal Q that minimises |S - S0 Q|_F; S and S0 are (P, R).

    With S0^T S = U D V^T it is Q = U V^T (Procrustes), the gradient of the nuclear norm |S0^T S|_*.
    Since Q minimises |S - S0 Q|_F^2, it can be held constant in the gradient 2 (S - S0 Q), which is
    finite for all singular values. (Where some vanish, it is one of the subgradients.)
    """
    U, _, Vt = torch.linalg.svd((S0.T @ S).detach().double())
    closest: Tensor = S0 @ (U @ Vt).to(S0.dtype)
    return closest


def kl_of_square_factors(difference: Tensor, S: Tensor, S0: Tensor) -> Tensor:
    """Return KL(N(mu, S S^T) || N(mu0, S0 S0^T)) for square factors.

    With T = S0^-1 S and d = mu - mu0: (|T|_F^2 + |S0^-1 d|^2 - P) / 2 - log |det T|.

    Args:
        difference: The vector d, (P,).
        S: First factor, (P, P).
        S0: Second factor, (P, P).
    """
    T: Tensor = solve(S0, torch.cat([S, difference[:, None]], dim=1))
    kl: Tensor = (T.square().sum() - len(difference)) / 2 - torch.linalg.slogdet(T[:, :-1])[1]
    return kl.to(S.dtype)


def solve(A: Tensor, B: Tensor) -> Tensor:
    """Return A^-1 B in double precision; not finite where A is singular."""
    solution: Tensor = torch.linalg.solve_ex(A.double(), B.double())[0]
    return solution
