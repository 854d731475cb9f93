"""Linear regression by the expected squared loss: Theorem 1 and what goes with it.

The loss is the paper's, a sum: E |y - X w|^2 / 2 = (|y - X mu|^2 + |X S|_F^2) / 2. With a mean over
N targets of the squared error without the 1/2, as torch has it, a learning rate `lr` there is
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
"""The rows of X that a step uses and its learning rate: (slice(None), 0.1) for all of them."""


def expected_loss(X: Tensor, y: Tensor, q: Normal) -> float:
    """Return (|y - X mu|^2 + |X S|_F^2) / 2."""
    X, y = _data(X, y)
    return 0.5 * ((y - X @ q.mean).square().sum() + (X @ q.factor).square().sum()).item()


def limit(X: Tensor, y: Tensor, prior: Normal) -> Normal:
    """Return where gradient descent ends: Theorem 1, "Implicit Bias in Regression".

    Mean X^+ y + P_null mu0 and factor P_null S0: among all minimisers the one closest to the prior
    in 2-Wasserstein distance. X may have any rank; momentum changes nothing, and nor does SGD where
    the targets can be fitted.
    """
    X, y = _data(X, y)
    null = null_projection(X)
    return Normal(torch.linalg.pinv(X) @ y + null @ prior.mean, null @ prior.factor)


def is_minimizer(X: Tensor, y: Tensor, q: Normal, tolerance: float = 1e-8) -> bool:
    """Return whether q minimises the expected loss: X^T (X mu - y) = 0 and X S = 0."""
    X, y = _data(X, y)
    at_mean = (X.T @ (X @ q.mean - y)).norm() <= tolerance * max(1.0, (X.T @ y).norm().item())
    return bool(at_mean) and bool((X @ q.factor).norm() <= tolerance * X.norm())


def random_minimizer(
    X: Tensor, y: Tensor, rank: int, *, generator: torch.Generator | None = None
) -> Normal:
    """Return a minimiser with a normal draw in the null space: there are infinitely many."""
    X, y = _data(X, y)
    null = null_projection(X)
    v, A = (
        torch.randn(shape, dtype=torch.float64, generator=generator)
        for shape in ((X.shape[1],), (X.shape[1], rank))
    )
    return Normal(torch.linalg.pinv(X) @ y + null @ v, null @ A)


def gradient_flow(X: Tensor, y: Tensor, prior: Normal, time: float) -> Normal:
    """Return the distribution at a time of gradient flow: what is left of the prior decays.

    With E = exp(-X^T X time) and the limit mu*: mean mu* + E (mu0 - mu*), factor E S0.
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

    A step on the rows X_b with learning rate lr has the gradients X_b^T (X_b mu - y_b) and
    X_b^T X_b S. Momentum is torch's: v <- m v + g, and the step is v, or g + m v with Nesterov's.

    Args:
        X: Inputs, (N, P).
        y: Targets, (N,).
        prior: Where it starts.
        batches: For each step its rows and its learning rate.
        momentum: m, heavy ball.
        nesterov: Whether to use Nesterov's momentum.
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
    """Return the distribution of models that each start at a draw of the prior and are trained.

    Training takes w0 to w0 + X^+ (y - X w0), the closest interpolating weights. That map is affine,
    so the trained ensemble is Gaussian (Prop. "Connection to Ensembles").
    """
    X, y = _data(X, y)
    inverse = torch.linalg.pinv(X)
    mean = prior.mean + inverse @ (y - X @ prior.mean)
    return Normal(mean, prior.factor - inverse @ (X @ prior.factor))


def generalized(X: Tensor, y: Tensor, prior: Normal, strength: float) -> Normal:
    """Return the minimiser of the expected loss + strength W2^2 to the prior (GVI).

    With H = X^T X + 2 strength: mean mu0 + H^-1 X^T (y - X mu0), factor 2 strength H^-1 S0, where
    S0^T S is positive definite, so that the nuclear norm's gradient is S0. For a strength that goes
    to 0 it goes to `limit`. No strength above 0 gives the limit itself, unless the prior fits the
    data already: there the loss is stationary, but the distance is not (claim `wide-gvi`).
    """
    if not strength > 0:
        raise ValueError(f"generalized: expected a strength above 0, received {strength}.")
    X, y = _data(X, y)
    H = X.T @ X + 2 * strength * torch.eye(X.shape[1], dtype=X.dtype)
    step = torch.linalg.solve(H, X.T @ (y - X @ prior.mean))
    return Normal(prior.mean + step, 2 * strength * torch.linalg.solve(H, prior.factor))


def posterior(X: Tensor, y: Tensor, prior: Normal) -> Normal:
    """Return the Bayesian posterior for observations with noise of variance 1: the ELBO's maximum.

    Precision Sigma0^-1 + X^T X; Sigma0 must not be singular. It keeps variance at the data.
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
