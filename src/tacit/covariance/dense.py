"""Matrices that the structures have in common: flat views, nuclear norm, KL of square factors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tacit.covariance.base import Shapes


def rows(factors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
    """Return factors of shape (R, *shape) as one matrix (R, P), tensor after tensor."""
    return torch.cat([factors[name].reshape(len(factors[name]), -1) for name in shapes], dim=1)


def vector(tensors: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
    """Return the layer's tensors as one vector of length P, tensor after tensor."""
    return torch.cat([tensors[name].reshape(-1) for name in shapes])


def nuclear_norm(matrix: Tensor) -> Tensor:
    """Return the sum of the singular values.

    Its gradient is U V^T, whatever the singular values: nothing is divided by their differences, so
    it is finite where they coincide or vanish. (Where some vanish it is one of the subgradients.)
    """
    norm: Tensor = torch.linalg.svdvals(matrix).sum()
    return norm


def kl_of_square_factors(difference: Tensor, S: Tensor, S0: Tensor) -> Tensor:
    """Return KL(N(mu, S S^T) || N(mu0, S0 S0^T)) for square factors.

    With T = S0^-1 S and d = mu - mu0: (|T|_F^2 + |S0^-1 d|^2 - P) / 2 - log |det T|.

    Args:
        difference: d, of shape (P,).
        S: Of shape (P, P).
        S0: Of shape (P, P).
    """
    T: Tensor = torch.linalg.solve(S0, torch.cat([S, difference[:, None]], dim=1))
    kl: Tensor = (T.square().sum() - len(difference)) / 2 - torch.linalg.slogdet(T[:, :-1])[1]
    return kl
