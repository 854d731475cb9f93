"""Binary classification of separable data with the expected exponential loss: Theorem 2.

As in the paper, the loss is the sum over n of E exp(-y_n x_n^T w), with labels +1 and -1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.theory.gaussian import Normal
from tacit.theory.subspaces import null_projection, row_basis


def expected_loss(X: Tensor, y: Tensor, q: Normal) -> float:
    """Return sum_n exp(-y_n x_n^T mu + x_n^T S S^T x_n / 2), a sum of log-normal means.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1.0])
        >>> expected_loss(X, y, Normal(torch.zeros(2), torch.zeros(2, 1)))  # exp(0)
        1.0
    """
    return _terms(_signed(X, y), q).sum().item()


def gradients(X: Tensor, y: Tensor, q: Normal) -> tuple[Tensor, Tensor]:
    """Return the gradients of the expected loss with respect to mean and factor.

    With e_n the terms of the loss, they are -sum_n e_n y_n x_n and sum_n e_n x_n x_n^T S.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1.0])
        >>> mean, factor = gradients(X, y, Normal(torch.zeros(2), torch.zeros(2, 1)))
        >>> mean.tolist()
        [-1.0, 0.0]
    """
    Z = _signed(X, y)
    terms = _terms(Z, q)
    return -Z.T @ terms, Z.T @ (terms[:, None] * (Z @ q.factor))


def gradient_descent(X: Tensor, y: Tensor, prior: Normal, lr: float) -> Iterator[Normal]:
    """Yield the distribution after each step of gradient descent, indefinitely.

    Examples:
        >>> import torch
        >>> from itertools import islice
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1.0])
        >>> steps = gradient_descent(X, y, Normal(torch.zeros(2), torch.eye(2)), lr=0.1)
        >>> *_, last = islice(steps, 1000)
        >>> last.mean.round(decimals=1).tolist(), last.factor.round(decimals=1).tolist()
        ([4.6, 0.0], [[0.0, 0.0], [0.0, 1.0]])
    """
    q = prior
    while True:
        mean, factor = gradients(X, y, q)
        q = Normal(q.mean - lr * mean, q.factor - lr * factor)
        yield q


@dataclass(frozen=True, eq=False)
class MaxMargin:
    """The solution of the hard-margin support vector machine without a bias.

    Args:
        vector: The max-margin vector: the shortest w with y_n x_n^T w >= 1 for all n, (P,).
        support: Indices of the support vectors: the data with a positive dual variable.
        dual: Dual variables alpha_n > 0 of the support vectors: vector = sum_n alpha_n y_n x_n.
        spans: Whether the support vectors span the data.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 0.0], [-4.0, 0.0]]), torch.tensor([1.0, -1.0])
        >>> solution = max_margin(X, y)
        >>> solution.support.tolist(), solution.spans
        ([0], True)
    """

    vector: Tensor
    support: Tensor
    dual: Tensor
    spans: bool


def max_margin(X: Tensor, y: Tensor) -> MaxMargin:
    """Solve the hard-margin support vector machine; needs SciPy.

    Least distance programming (Lawson and Hanson, Solving Least Squares Problems, chapter 23): with
    the rows y_n x_n in Z, the shortest w with Z w >= 1 follows from the residual r of the problem
    min_{u >= 0} |[Z^T; 1^T] u - e_{P+1}|, as w = -r_{1..P} / r_{P+1}. It is solved by an active-set
    method, exact up to rounding.

    Raises:
        ValueError: If there are no data or they are not linearly separable through the origin.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[2.0, 0.0], [-4.0, 0.0]]), torch.tensor([1.0, -1.0])
        >>> max_margin(X, y).vector.round(decimals=6).tolist()  # the first has y x^T w = 1
        [0.5, 0.0]
    """
    from scipy.optimize import nnls

    Z = _signed(X, y)
    if not len(Z):
        raise ValueError("max_margin: expected at least one data point, received none.")
    size = Z.norm(dim=1).max()  # solve for Z / size; its solution is size times that for Z
    Z = Z / size
    stacked = torch.cat([Z.T, torch.ones(1, len(Z), dtype=Z.dtype)])
    target = torch.zeros(len(stacked), dtype=Z.dtype)
    target[-1] = 1
    u, distance = nnls(stacked.numpy(), target.numpy(), maxiter=100 * len(Z))
    if distance < 1e-9:
        raise ValueError("max_margin: the data are not linearly separable through the origin.")
    weights = torch.from_numpy(u)
    residual = stacked @ weights - target
    alpha = -weights / residual[-1]
    support = torch.nonzero(alpha > 1e-10 * alpha.max()).flatten()
    spans = row_basis(Z[support]).shape[1] == row_basis(Z).shape[1]
    vector = -residual[:-1] / residual[-1] / size
    return MaxMargin(vector, support, alpha[support] / size**2, spans)


def limit(X: Tensor, y: Tensor, prior: Normal) -> Normal:
    """Return the limit of the rescaled iterates of gradient descent: Theorem 2.

    Its mean is the max-margin vector plus P_null mu0, and its factor is P_null S0, which has no
    variance at the data. If the support vectors don't span the data, the theorem holds after
    `project_to_support`.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[2.0, 0.0]]), torch.tensor([1.0])
        >>> found = limit(X, y, Normal(torch.tensor([5.0, 5.0]), torch.eye(2)))
        >>> found.mean.round(decimals=6).tolist(), found.factor.tolist()
        ([0.5, 5.0], [[0.0, 0.0], [0.0, 1.0]])
    """
    null = null_projection(_signed(X, y))
    return Normal(max_margin(X, y).vector + null @ prior.mean, null @ prior.factor)


def rescaled(q: Normal, step: int, null: Tensor, prior_mean: Tensor) -> Normal:
    """Return the rescaled iterate of Theorem 2: mean mu_t / log t + P_null mu0, factor S_t.

    Args:
        q: The iterate.
        step: Step t, at least 2.
        null: P_null, from the data (`null_projection`) or from S (`null_projection_from_factor`).
        prior_mean: mu0.

    Examples:
        >>> import torch
        >>> from itertools import islice
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1.0])
        >>> prior = Normal(torch.zeros(2), torch.eye(2))
        >>> *_, last = islice(gradient_descent(X, y, prior, lr=1.0), 1000)
        >>> found = rescaled(last, 1000, null_projection(X), prior.mean)
        >>> found.mean.round(decimals=1).tolist()  # that of `limit` is 1, 0
        [1.0, 0.0]
    """
    if step < 2:
        raise ValueError(f"rescaled: expected a step of at least 2, received {step}.")
    return Normal(q.mean / math.log(step) + null @ prior_mean, q.factor)


def residual(q: Normal, step: int, X: Tensor, y: Tensor, lr: float) -> Tensor:
    """Return r_t = mu_t - mu_hat log t - mu_tilde, projected onto the span of the support vectors.

    mu_hat is the max-margin vector, and mu_tilde solves lr exp(-y_n x_n^T mu_tilde) = alpha_n for
    every support vector. r_t is bounded, so mu_t = mu_hat log t + O(1): the Lemma on the log t
    behaviour.

    Examples:
        >>> import torch
        >>> from itertools import islice
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1.0])
        >>> prior = Normal(torch.zeros(2), torch.eye(2))
        >>> steps = [prior, *islice(gradient_descent(X, y, prior, lr=0.1), 1000)]
        >>> [round(residual(steps[t], t, X, y, lr=0.1)[0].item(), 2) for t in (10, 100, 1000)]
        [0.83, 0.14, 0.02]
    """
    solution = max_margin(X, y)
    support = _signed(X, y)[solution.support]
    tilde = torch.linalg.pinv(support) @ -torch.log(solution.dual / lr)
    basis = row_basis(support)
    left: Tensor = q.mean - solution.vector * math.log(step) - tilde
    return basis @ (basis.T @ left)


def project_to_support(q: Normal, X: Tensor, y: Tensor) -> Normal:
    """Return q projected onto the span of the support vectors and the null space of the data.

    The last Lemma of the proof, claim `classification-generalized`: if the support vectors don't
    span the data, Theorem 2 holds for these projected distributions.

    Examples:
        >>> import torch
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 9.0]])  # the support vector is the first
        >>> q = Normal(torch.ones(2), torch.eye(2))
        >>> project_to_support(q, X, torch.ones(2)).mean.round(decimals=6).tolist()
        [1.0, 0.0]
    """
    Z = _signed(X, y)
    basis = row_basis(Z[max_margin(X, y).support])
    return q.project(basis @ basis.T + null_projection(Z))


def _terms(Z: Tensor, q: Normal) -> Tensor:
    mean, variance = q.predict(Z)
    return torch.exp(-mean + variance / 2)


def _signed(X: Tensor, y: Tensor) -> Tensor:
    """Return the rows y_n x_n: inputs with their labels absorbed, in float64."""
    X, y = torch.as_tensor(X), torch.as_tensor(y)
    if X.ndim != 2 or y.shape != X.shape[:1] or not bool((y.abs() == 1).all()):
        raise ValueError(
            "theory.classification: expected X of shape (N, P) and labels +1 or -1 of shape (N,), "
            f"received {tuple(X.shape)} and {tuple(y.shape)}."
        )
    return X.detach().double() * y.detach().double()[:, None]
