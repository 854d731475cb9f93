"""Linear regression with relative noise, w = mean (1 + s z): a ridge that learns its strengths.

With one s_j and one z_j per input, a_j = |X_j|^2 the squared length of column j of X, and z of mean
0 and variance 1, the expected loss is

    L(m, s) = E |y - X w|^2 / 2 = (|y - X m|^2 + sum_j lambda_j m_j^2) / 2,  lambda_j = a_j s_j^2.

The mean trains at rate 1 and s at rate `speed`, written v. Under gradient flow,

    m' = -X^T (X m - y) - lambda m,    s_j' = -v a_j m_j^2 s_j.

For all X, y and initial values:

1. s_j(t) = s_j(0) exp(-v a_j int m_j^2): it keeps its sign and |s_j| never grows. The loss never
   grows either: L' = -|m'|^2 - |s'|^2 / v. Since (s_j^2)' = -2 v lambda_j m_j^2, the penalty is
   bounded over all of training: int sum_j lambda_j m_j^2 = (|s(0)|^2 - |s(t)|^2) / (2 v).
2. For v > 0 every stationary point is a global minimum: dL/ds_j = a_j s_j m_j^2 = 0 makes
   lambda_j m_j = 0, so dL/dm = 0 is X^T (X m - y) = 0. The mean is a least-squares solution and
   a_j s_j m_j = 0: no noise is left, at any input, except from columns of X that are 0, whose mean
   and noise don't train.
3. With alpha = 1 / lambda, L is jointly convex in (m, alpha), because m_j^2 / alpha_j is, and the
   flow is a mirror flow: alpha_j' = -4 v a_j alpha_j^3 dL/dalpha_j. Hence `bound`.
4. For v > 0 the flow converges to one of these minima. It is a gradient flow of a polynomial (in m
   and s / sqrt(v)), so it converges if it is bounded (Lojasiewicz), and s is. So is m, for any
   strengths lambda(t) >= 0: m is drawn towards the hyperplanes x_n^T m = y_n and m_j = 0, a limit
   of relaxed projections onto them (Lie and Trotter), and relaxed projections onto finitely many
   hyperplanes, in any order, are bounded (Meshulam, On products of projections, 1996); uniformly
   so, because they are nonexpansive: unbounded finite sequences could be chained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.theory.gaussian import Normal
from tacit.theory.regression import Step


@dataclass(frozen=True, eq=False)
class Weights:
    """The distribution of w = mean (1 + s z).

    Args:
        mean: m, a vector of length P.
        s: Relative standard deviations, (P,), of either sign.

    Examples:
        >>> import torch
        >>> q = Weights(torch.tensor([2.0, 0.0]), torch.tensor([0.5, 0.5]))
        >>> q.normal.covariance.diagonal().tolist()  # (s m)^2
        [1.0, 0.0]
    """

    mean: Tensor
    s: Tensor

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.s.shape != self.mean.shape:
            raise ValueError(
                "Weights: expected a mean and an s of shape (P,), received "
                f"{tuple(self.mean.shape)} and {tuple(self.s.shape)}."
            )
        object.__setattr__(self, "mean", self.mean.detach().double())
        object.__setattr__(self, "s", self.s.detach().double())

    @property
    def normal(self) -> Normal:
        """The same distribution for Gaussian z: N(m, S S^T) with S = diag(s m)."""
        return Normal(self.mean, torch.diag(self.s * self.mean))


def strengths(X: Tensor, q: Weights) -> Tensor:
    """Return the strengths of the ridge, lambda_j = |X_j|^2 s_j^2, (P,).

    Examples:
        >>> import torch
        >>> X = torch.tensor([[1.0, 2.0]])
        >>> strengths(X, Weights(torch.ones(2), torch.tensor([0.5, 0.5]))).tolist()
        [0.25, 1.0]
    """
    return X.detach().double().square().sum(0) * q.s.square()


def expected_loss(X: Tensor, y: Tensor, q: Weights) -> float:
    """Return (|y - X m|^2 + sum_j lambda_j m_j^2) / 2.

    The errors y - X m - X diag(s m) z have mean y - X m, and the z_j are uncorrelated with variance
    1, so their variances add up to sum_j s_j^2 m_j^2 |X_j|^2.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
        >>> expected_loss(X, y, Weights(torch.ones(2), torch.tensor([0.5, 0.5])))  # (0.25 + 1) / 2
        0.625
    """
    X, y = _data(X, y, q)
    penalty = strengths(X, q) @ q.mean.square()
    return 0.5 * ((y - X @ q.mean).square().sum() + penalty).item()


def gradients(X: Tensor, y: Tensor, q: Weights) -> tuple[Tensor, Tensor]:
    """Return the gradients X^T (X m - y) + lambda m and |X_j|^2 m_j^2 s_j of the expected loss.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
        >>> mean, s = gradients(X, y, Weights(torch.ones(2), torch.tensor([0.5, 0.5])))
        >>> mean.tolist(), s.tolist()
        ([0.25, 1.0], [0.5, 2.0])
    """
    X, y = _data(X, y, q)
    mean = X.T @ (X @ q.mean - y) + strengths(X, q) * q.mean
    return mean, X.square().sum(0) * q.mean.square() * q.s


def gradient_descent(
    X: Tensor, y: Tensor, prior: Weights, batches: Iterable[Step], speed: float
) -> Iterator[Weights]:
    """Yield the weights after each step of (stochastic) gradient descent.

    Args:
        X: Inputs, (N, P).
        y: Targets, (N,).
        prior: Initial weights.
        batches: Rows and learning rate of each step; the loss of a step is that of its rows.
        speed: Learning rate of s relative to that of the mean.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
        >>> prior = Weights(torch.zeros(2), torch.ones(2))
        >>> *_, last = gradient_descent(X, y, prior, [(slice(None), 0.1)] * 200, speed=0.0)
        >>> torch.allclose(last.mean, ridge(X, y, prior).mean)
        True
    """
    q = prior
    for rows, lr in batches:
        mean, s = gradients(X[rows], y[rows], q)
        q = Weights(q.mean - lr * mean, q.s - lr * speed * s)
        yield q


def gradient_flow(X: Tensor, y: Tensor, prior: Weights, time: float, speed: float) -> Weights:
    """Return the weights under gradient flow at a given time; needs SciPy.

    Integrated numerically by LSODA, multistep methods of variable order that switch to implicit
    ones where the equation is stiff, at a relative tolerance of 1e-12 per step. Observed
    errors are at most 1e-10. The state is m and int m_j^2, from which s follows in closed form: its
    sign and its zeros are exact.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
        >>> prior = Weights(torch.zeros(2), torch.ones(2))
        >>> for time in (1.0, 100.0):
        ...     found = gradient_flow(X, y, prior, time, speed=0.1)
        ...     print(round(expected_loss(X, y, found), 2), found.s.round(decimals=2).tolist())
        1.35 [0.97, 0.87]
        0.0 [0.63, 0.0]
    """
    X, y = _data(X, y, prior)
    P, a = len(prior.mean), X.square().sum(0)
    H, Xy = X.T @ X, X.T @ y

    def velocity(state: Tensor) -> Tensor:
        m, s = state[:P], prior.s * torch.exp(-speed * a * state[P:])
        return torch.cat([Xy - H @ m - a * s.square() * m, m.square()])

    state = _integrate(velocity, torch.cat([prior.mean, torch.zeros_like(prior.mean)]), time)
    return Weights(state[:P], prior.s * torch.exp(-speed * a * state[P:]))


def ridge(X: Tensor, y: Tensor, prior: Weights) -> Weights:
    """Return the limit of gradient flow with s fixed, at speed 0: a ridge regression.

    The loss is quadratic in m with H = X^T X + diag(lambda), so m converges to
    H^+ X^T y + P_null(H) m(0), the minimiser closest to m(0). It is unique, (H^-1) X^T y, if all
    lambda_j > 0. Dividing column j of X by c leaves lambda_j m_j^2 unchanged if m_j is multiplied
    by c: for lambda_j > 0 the predictions don't depend on the units of the inputs.

    Examples:
        >>> X, y = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
        >>> ridge(X, y, Weights(torch.zeros(2), torch.ones(2))).mean
        tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    X, y = _data(X, y, prior)
    # The least-squares problem A m = (y, 0) has H = A^T A, and A the better condition.
    A = torch.cat([X, torch.diag(strengths(X, prior).sqrt())])
    inverse = torch.linalg.pinv(A)
    mean = prior.mean + inverse[:, : len(y)] @ y - inverse @ (A @ prior.mean)
    return Weights(mean, prior.s)


def slow_flow(X: Tensor, y: Tensor, prior: Weights, time: float) -> Weights:
    """Return the limit of gradient flow at time `time` / speed as the speed goes to 0; needs SciPy.

    The mean is the ridge solution m(lambda), and lambda_j' = -2 a_j m_j(lambda)^2 lambda_j. With
    F(lambda) = min_m L we have dF/dlambda_j = m_j(lambda)^2 / 2, hence
    lambda_j' = -4 a_j lambda_j dF/dlambda_j, a natural gradient descent on F. At every time m has
    the smallest sum_j lambda_j m_j^2 of all vectors with the same X m.

    For one data point the limit has the smallest sum_j s_j(0)^2 |X_j| |m_j| of all that fit: the
    columns with the smallest |s_j(0)| share y equally, m_j X_j = y / k for k of them, and the other
    means are 0. (The tie is unstable: numerically, rounding eventually breaks it.) Proof:
    lambda_j m_j = X_j r with r = y - X m, so (lambda_j^2)' = -4 a_j^2 r^2 and
    lambda_j = a_j sqrt(s_j(0)^4 - g) with one g = 4 int r^2 for all j. By `bound` r goes to 0, so
    some lambda_j does, and g to the smallest s_j(0)^4; X_j m_j = r / sqrt(s_j(0)^4 - g). For more
    data points r changes direction, and the limit may differ.

    If all lambda_j(0) > 0, the flow at speed v is within O(v) of this, uniformly on [t0, time] for
    every t0 > 0: m is bounded, so lambda has a lower bound above 0 on the interval, and H one, h.
    The distance e = m - m(lambda) obeys e' = -H e + O(v), so |e| <= |e(0)| exp(-h t) + O(v), and
    Gronwall's lemma carries this over to log lambda.

    Integrated numerically like `gradient_flow`; the state is int m_j^2.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
        >>> prior = Weights(torch.zeros(2), torch.tensor([1.0, 2.0]))
        >>> slow_flow(X, y, prior, time=100.0).mean.round(decimals=1).tolist()  # least noise wins
        [3.0, 0.0]
    """
    X, y = _data(X, y, prior)
    decay = X.square().sum(0)

    def now(state: Tensor) -> Weights:
        return ridge(X, y, Weights(prior.mean, prior.s * torch.exp(-decay * state)))

    state = _integrate(lambda h: now(h).mean.square(), torch.zeros_like(prior.mean), time)
    return now(state)


def bound(X: Tensor, y: Tensor, prior: Weights, mean: Tensor, time: float, speed: float) -> float:
    """Return an upper bound on the expected loss under gradient flow at a time, for any `mean`.

    With u the given mean and t the time, L(m(t), s(t)) is at most

        |y - X u|^2 / 2 + |u - m(0)|^2 / (2 t)
            + sum_j lambda_j(0) u_j^2 / (1 + sqrt(1 + 4 v t a_j u_j^2)).

    The last term is the ridge penalty at first. Later it becomes
    sum_j s_j(0)^2 |X_j| |u_j| / (2 sqrt(v t)), a lasso penalty that fades.

    Proof: The potential |m|^2 / 2 + sum_j 1 / (8 v a_j alpha_j) has the Bregman divergence
    D = |u - m|^2 / 2 + sum_j (b_j - lambda_j)^2 / (8 v a_j b_j) from (m, 1 / lambda) to any point
    (u, 1 / b). Under the flow D' = <grad L, (u, 1 / b) - (m, alpha)> <= L(u, b) - L(m, lambda) by
    convexity. Integrated, with L never growing, t L(t) <= t L(u, b) + D(0). The minimum over b is
    the bound. Columns with lambda_j(0) = 0 keep it and have no part in D. For `slow_flow`, the same
    holds without |u - m(0)|^2 / (2 t), at v = 1.

    Examples:
        >>> import torch
        >>> X, y = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
        >>> prior, time = Weights(torch.zeros(2), torch.ones(2)), 10.0
        >>> least = bound(X, y, prior, torch.tensor([1.0, 1.0]), time, speed=0.1)
        >>> expected_loss(X, y, gradient_flow(X, y, prior, time, speed=0.1)) < least
        True
    """
    X, y = _data(X, y, prior)
    a, mean = X.square().sum(0), mean.double()
    fit = (y - X @ mean).square().sum() / 2 + (mean - prior.mean).square().sum() / (2 * time)
    root = torch.sqrt(1 + 4 * speed * time * a * mean.square())
    return float(fit + (strengths(X, prior) * mean.square() / (1 + root)).sum())


def _integrate(velocity: Callable[[Tensor], Tensor], start: Tensor, time: float) -> Tensor:
    from scipy.integrate import solve_ivp

    if not 0 <= time < math.inf:
        raise ValueError(f"theory.relative: expected a finite time of at least 0, received {time}.")
    found = solve_ivp(
        lambda _, state: velocity(torch.from_numpy(state)).numpy(),
        (0.0, time), start.numpy(), method="LSODA", rtol=1e-12, atol=1e-14,
    )  # fmt: skip
    return torch.from_numpy(found.y[:, -1].copy())


def _data(X: Tensor, y: Tensor, q: Weights) -> tuple[Tensor, Tensor]:
    X, y = torch.as_tensor(X), torch.as_tensor(y)
    if X.ndim != 2 or y.shape != X.shape[:1] or X.shape[1:] != q.mean.shape:
        raise ValueError(
            "theory.relative: expected X of shape (N, P), y of shape (N,) and a mean of shape (P,),"
            f" received {tuple(X.shape)}, {tuple(y.shape)} and {tuple(q.mean.shape)}."
        )
    return X.detach().double(), y.detach().double()
