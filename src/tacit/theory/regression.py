"""Linear regression with the expected squared loss: Theorem 1 and related results.

As in the paper, the loss is a sum: E |y - X w|^2 / 2 = (|y - X mu|^2 + |X S|_F^2) / 2. torch's
`mse_loss` is a mean over N targets without the 1/2, so a learning rate of `lr` for `mse_loss` is
2 lr / N here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from tacit.theory.gaussian import Normal
from tacit.theory.subspaces import null_projection

Step: TypeAlias = tuple[Tensor | slice, float]
"""The rows of X that a step uses, and its learning rate; slice(None) selects all rows."""


def expected_loss(X: Tensor, y: Tensor, q: Normal) -> float:
    """Return (|y - X mu|^2 + |X S|_F^2) / 2.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])
        >>> expected_loss(X, y, Normal(torch.zeros(2), torch.eye(2)))  # (2^2 + 1^2) / 2
        2.5
    """
    X, y = _data(X, y)
    return 0.5 * ((y - X @ q.mean).square().sum() + (X @ q.factor).square().sum()).item()


def limit(X: Tensor, y: Tensor, prior: Normal) -> Normal:
    """Return the limit of gradient descent: Theorem 1, "Implicit Bias in Regression".

    The mean is X^+ y + P_null mu0 and the factor is P_null S0: of all minimisers, the one closest
    to the prior in 2-Wasserstein distance. X may have any rank. Momentum doesn't change the limit,
    and neither does SGD if the targets can be interpolated.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])  # no data on the second weight
        >>> found = limit(X, y, Normal(torch.tensor([5.0, 5.0]), torch.eye(2)))
        >>> found.mean.tolist(), found.factor.tolist()
        ([2.0, 5.0], [[0.0, 0.0], [0.0, 1.0]])
    """
    X, y = _data(X, y)
    null = null_projection(X)
    return Normal(torch.linalg.pinv(X) @ y + null @ prior.mean, null @ prior.factor)


def is_minimizer(X: Tensor, y: Tensor, q: Normal, tolerance: float = 1e-8) -> bool:
    """Return whether q minimises the expected loss: X^T (X mu - y) = 0 and X S = 0.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])
        >>> prior = Normal(torch.zeros(2), torch.eye(2))
        >>> is_minimizer(X, y, prior), is_minimizer(X, y, limit(X, y, prior))
        (False, True)
    """
    X, y = _data(X, y)
    at_mean = (X.T @ (X @ q.mean - y)).norm() <= tolerance * max(1.0, (X.T @ y).norm().item())
    return bool(at_mean) and bool((X @ q.factor).norm() <= tolerance * X.norm())


def random_minimizer(
    X: Tensor, y: Tensor, rank: int, *, generator: torch.Generator | None = None
) -> Normal:
    """Return a random minimiser: mean and factor are normal draws in the null space of X.

    Examples:
        >>> import torch
        >>> from tacit.theory import squared_wasserstein
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])
        >>> prior, other = Normal(torch.zeros(2), torch.eye(2)), random_minimizer(X, y, rank=2)
        >>> is_minimizer(X, y, other)
        True
        >>> squared_wasserstein(other, prior) >= squared_wasserstein(limit(X, y, prior), prior)
        True
    """
    X, y = _data(X, y)
    null = null_projection(X)
    v, A = (
        torch.randn(shape, dtype=torch.float64, generator=generator)
        for shape in ((X.shape[1],), (X.shape[1], rank))
    )
    return Normal(torch.linalg.pinv(X) @ y + null @ v, null @ A)


def gradient_flow(X: Tensor, y: Tensor, prior: Normal, time: float) -> Normal:
    """Return the distribution under gradient flow at a given time.

    With E = exp(-X^T X time) and mu* the mean of `limit`, the mean is mu* + E (mu0 - mu*) and the
    factor is E S0: the prior decays exponentially on the span of the data.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])
        >>> found = gradient_flow(X, y, Normal(torch.zeros(2), torch.eye(2)), time=1.0)
        >>> found.factor.diagonal().round(decimals=3).tolist()  # exp(-1) where there are data
        [0.368, 1.0]
    """
    X, y = _data(X, y)
    end = limit(X, y, prior)
    decay = torch.linalg.matrix_exp(-time * (X.T @ X))
    return Normal(end.mean + decay @ (prior.mean - end.mean), decay @ prior.factor)


def gradient_descent(
    X: Tensor,
    y: Tensor,
    prior: Normal,
    batches: Iterable[Step],
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> Iterator[Normal]:
    """Yield the distribution after each step of (stochastic) gradient descent.

    The gradients on the rows X_b are X_b^T (X_b mu - y_b) and X_b^T X_b S. Momentum follows torch:
    v <- m v + g, and the step is lr v, or lr (g + m v) with Nesterov momentum.

    Args:
        X: Inputs, (N, P).
        y: Targets, (N,).
        prior: Initial distribution.
        batches: Rows and learning rate of each step.
        momentum: Momentum coefficient m.
        nesterov: Whether to use Nesterov momentum.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])
        >>> prior, every_row = Normal(torch.zeros(2), torch.eye(2)), slice(None)
        >>> *_, last = gradient_descent(X, y, prior, [(every_row, 0.5)] * 40)
        >>> last.mean.round(decimals=6).tolist(), limit(X, y, prior).mean.tolist()
        ([2.0, 0.0], [2.0, 0.0])
    """
    X, y = _data(X, y)
    # Mean and factor are columns of one matrix: the same linear map acts on both.
    state = torch.column_stack([prior.mean, prior.factor])
    targets = torch.column_stack([y, torch.zeros(len(y), prior.factor.shape[1], dtype=y.dtype)])
    velocity = torch.zeros_like(state)
    for rows, lr in batches:
        gradient = X[rows].T @ (X[rows] @ state - targets[rows])
        velocity = momentum * velocity + gradient
        state = state - lr * (gradient + momentum * velocity if nesterov else velocity)
        yield Normal(state[:, 0], state[:, 1:])


def ensemble(X: Tensor, y: Tensor, prior: Normal) -> Normal:
    """Return the distribution of trained models, each initialized with a draw from the prior.

    Training takes w0 to w0 + X^+ (y - X w0), the closest interpolating weights. This map is affine,
    so the trained ensemble is Gaussian (Prop. "Connection to Ensembles").

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])
        >>> prior = Normal(torch.zeros(2), torch.eye(2))
        >>> torch.equal(ensemble(X, y, prior).covariance, limit(X, y, prior).covariance)
        True
    """
    X, y = _data(X, y)
    inverse = torch.linalg.pinv(X)
    mean = prior.mean + inverse @ (y - X @ prior.mean)
    return Normal(mean, prior.factor - inverse @ (X @ prior.factor))


def generalized(X: Tensor, y: Tensor, prior: Normal, strength: float) -> Normal:
    """Return the minimiser of the expected loss plus strength W2^2 to the prior (GVI).

    With H = X^T X + 2 strength I, the mean is mu0 + H^-1 X^T (y - X mu0) and the factor is
    2 strength H^-1 S0. There S0^T S is positive definite, so the gradient of the nuclear norm is
    S0. As the strength goes to 0, the minimiser converges to `limit`. No positive strength gives
    the limit itself unless the prior already fits the data: at the limit the loss is stationary,
    but the distance is not (claim `wide-gvi`).

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])
        >>> prior = Normal(torch.zeros(2), torch.eye(2))
        >>> for strength in (1.0, 0.01):  # the limit is 2
        ...     print(round(generalized(X, y, prior, strength).mean[0].item(), 3))
        0.667
        1.961
    """
    if not strength > 0:
        raise ValueError(f"generalized: expected a strength above 0, received {strength}.")
    X, y = _data(X, y)
    H = X.T @ X + 2 * strength * torch.eye(X.shape[1], dtype=X.dtype)
    step = torch.linalg.solve(H, X.T @ (y - X @ prior.mean))
    return Normal(prior.mean + step, 2 * strength * torch.linalg.solve(H, prior.factor))


def posterior(X: Tensor, y: Tensor, prior: Normal) -> Normal:
    """Return the Bayesian posterior for observation noise of variance 1, which maximises the ELBO.

    Its precision is Sigma0^-1 + X^T X, so Sigma0 must be nonsingular. Unlike `limit`, it keeps
    variance at the data.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])
        >>> found = posterior(X, y, Normal(torch.zeros(2), torch.eye(2)))
        >>> found.mean.tolist(), found.covariance.diagonal().round(decimals=6).tolist()
        ([1.0, 0.0], [0.5, 1.0])
    """
    X, y = _data(X, y)
    precision0 = torch.linalg.inv(prior.covariance)
    precision = precision0 + X.T @ X
    mean = torch.linalg.solve(precision, X.T @ y + precision0 @ prior.mean)
    return Normal(mean, torch.linalg.inv(torch.linalg.cholesky(precision)).T)


def _data(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    X, y = torch.as_tensor(X), torch.as_tensor(y)
    if X.ndim != 2 or y.shape != X.shape[:1]:
        raise ValueError(
            "theory.regression: expected X of shape (N, P) and y of shape (N,), received "
            f"{tuple(X.shape)} and {tuple(y.shape)}."
        )
    return X.detach().double(), y.detach().double()
