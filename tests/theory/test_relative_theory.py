"""Relative noise in linear regression: training, gradient flow and closed forms agree."""

import itertools

import pytest
import torch
from scipy.optimize import linprog
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.calling.moments import expected_squared_error, output_moments
from tacit.theory import null_projection, regression, relative
from tacit.theory.relative import Weights

ALL = slice(None)


def problem(N=3, P=6, seed=0):
    """Return data and initial weights, with an s of either sign."""
    generator = torch.Generator().manual_seed(seed)
    X, y, mean, s = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((N, P), (N,), (P,), (P,))
    )
    return X, y, Weights(mean, 0.3 * s.sign() + 0.1 * s)


def linear_model(prior, speed=0.1):
    net = nn.Linear(len(prior.mean), 1, bias=False).double()
    model = tacit.variational(net, {"": tacit.Relative(0.3, speed=speed)})
    with torch.no_grad():
        net.weight.copy_(prior.mean[None])
        model.factors.weight.copy_(prior.s)
    return model


def state(model):
    return Weights(model.module.weight[0], model.factors.weight)


def exact_loss(model, X, y):
    return expected_squared_error(*output_moments(model, X), y[:, None]) * len(y) / 2


def train(model, X, y, batches, lr, **settings):
    optimizer = torch.optim.SGD(model.param_groups(lr, **settings), lr=lr)
    for rows in batches:
        optimizer.zero_grad()
        exact_loss(model, X[rows], y[rows]).backward()
        optimizer.step()
        yield state(model)


def last(iterator):
    for item in iterator:
        final = item
    return final


def assert_equal(q, p, tolerance):
    assert_close(q.mean, p.mean, atol=tolerance, rtol=0)
    assert_close(q.s, p.s, atol=tolerance, rtol=0)


class TestExpectedLoss:
    def test_it_is_that_of_the_normal_and_of_the_library(self):
        X, y, q = problem()
        ours = relative.expected_loss(X, y, q)
        assert ours == pytest.approx(regression.expected_loss(X, y, q.normal), rel=1e-12)
        assert ours == pytest.approx(exact_loss(linear_model(q), X, y).item(), rel=1e-12)

    def test_it_is_the_mean_of_the_loss_over_draws(self):
        """Within 5 standard errors, with signs as noise: only mean 0 and variance 1 matter."""
        X, y, q = problem()
        z = torch.randint(2, (40_000, 6), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
        losses = (y - (q.mean * (1 + q.s * z)) @ X.T).square().sum(1) / 2
        error = losses.std() / len(z) ** 0.5
        assert abs(losses.mean() - relative.expected_loss(X, y, q)) < 5 * error

    def test_gradients_agree_with_autograd(self):
        X, y, q = problem()
        model = linear_model(q)
        weights = [model.module.weight, model.factors.weight]
        mean, s = torch.autograd.grad(exact_loss(model, X, y), weights)
        assert_equal(Weights(mean[0], s), Weights(*relative.gradients(X, y, q)), 1e-12)


class TestTraining:
    @pytest.mark.parametrize("speed", [0.01, 1.0])
    def test_every_iterate_agrees_with_the_library(self, speed):
        X, y, prior = problem()
        generator = torch.Generator().manual_seed(0)
        batches = [torch.randperm(3, generator=generator)[:2] for _ in range(80)]
        ours = train(linear_model(prior, speed), X, y, batches, lr=0.05)
        steps = [(rows, 0.05) for rows in batches]
        theirs = relative.gradient_descent(X, y, prior, steps, speed)
        for a, b in zip(ours, theirs, strict=True):
            assert_equal(a, b, 1e-12)

    def test_with_fixed_noise_it_ends_at_the_ridge(self):
        X, y, prior = problem()
        prior = Weights(prior.mean, 3 * prior.s)  # strong, so that training is short
        final = last(train(linear_model(prior), X, y, [ALL] * 400, lr=0.06, factor_speed=0.0))
        assert_equal(final, relative.ridge(X, y, prior), 1e-7)

    def test_descent_with_small_steps_is_the_flow(self):
        """Its error is of first order in the step, so extrapolation leaves the second order."""
        X, y, prior = problem()
        flow = relative.gradient_flow(X, y, prior, 2.0, speed=0.5)
        coarse, fine = (
            last(relative.gradient_descent(X, y, prior, [(ALL, 2.0 / n)] * n, 0.5))
            for n in (1000, 2000)
        )
        assert_equal(fine, flow, 4e-3)
        extrapolated = Weights(2 * fine.mean - coarse.mean, 2 * fine.s - coarse.s)
        assert_equal(extrapolated, flow, 2e-5)


class TestFlow:
    def test_it_is_exact_without_speed(self):
        """m(t) = m* + exp(-H t) (m(0) - m*), with m* the ridge."""
        X, y, prior = problem()
        end = relative.ridge(X, y, prior)
        H = X.T @ X + torch.diag(relative.strengths(X, prior))
        mean = end.mean + torch.linalg.matrix_exp(-2 * H) @ (prior.mean - end.mean)
        found = relative.gradient_flow(X, y, prior, 2.0, speed=0.0)
        assert_equal(found, Weights(mean, prior.s), 1e-10)

    def test_two_stages_are_one(self):
        X, y, prior = problem()
        half = relative.gradient_flow(X, y, prior, 3.0, speed=0.3)
        whole = relative.gradient_flow(X, y, prior, 6.0, speed=0.3)
        assert_equal(relative.gradient_flow(X, y, half, 3.0, speed=0.3), whole, 1e-10)

    @pytest.mark.parametrize("speed", [0.05, 1.0])
    def test_loss_and_noise_shrink_and_signs_stay(self, speed):
        X, y, prior = problem()
        path = [relative.gradient_flow(X, y, prior, t, speed) for t in (0.0, 0.1, 0.5, 2.0, 9.0)]
        assert_equal(path[0], prior, 0.0)
        for before, after in itertools.pairwise(path):
            assert relative.expected_loss(X, y, after) < relative.expected_loss(X, y, before)
            assert (after.s.abs() < before.s.abs()).all()
            assert (after.s.sign() == prior.s.sign()).all()

    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize("N", [3, 8])
    def test_it_ends_at_least_squares_without_noise(self, N, seed):
        """The limit minimises the expected loss; where a mean is not 0 its noise is gone."""
        X, y, prior = problem(N=N, seed=seed)
        final = relative.gradient_flow(X, y, prior, 500.0, speed=2.0)
        assert regression.is_minimizer(X, y, final.normal, tolerance=1e-4)
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        assert (final.normal.predict(x)[1] < 1e-5).all()
        assert (prior.normal.predict(x)[1] > 1e-2).all()

    def test_a_dense_factor_stays_random_off_the_data_where_relative_noise_does_not(self):
        X, y, prior = problem()
        x = null_projection(X)[:1]  # an input orthogonal to the data
        dense = regression.limit(X, y, prior.normal)
        ours = relative.gradient_flow(X, y, prior, 500.0, speed=2.0)
        assert_close(dense.predict(x)[1], prior.normal.predict(x)[1], atol=1e-12, rtol=0)
        assert ours.normal.predict(x)[1] < 1e-6

    def test_where_the_mean_ends_at_0_noise_stays(self):
        """One column explains the target; the other's mean goes to 0 and its s stays."""
        X, y = torch.eye(2).double(), torch.tensor([1.0, 0.0]).double()
        prior = Weights(torch.ones(2), torch.full((2,), 0.5))
        final = relative.gradient_flow(X, y, prior, 60.0, speed=1.0)
        assert_close(final.mean, y, atol=1e-8, rtol=0)
        assert final.s[0] < 1e-8
        assert final.s[1] > 0.2

    def test_columns_of_0_keep_mean_and_noise(self):
        X, y, prior = problem()
        X[:, 2] = 0
        for final in (
            relative.gradient_flow(X, y, prior, 50.0, speed=0.5),
            relative.ridge(X, y, prior),
        ):
            assert final.mean[2] == pytest.approx(prior.mean[2].item(), abs=1e-12)
            assert final.s[2] == prior.s[2]

    def test_the_sum_of_all_penalties_is_that_of_the_noise_lost(self):
        """int sum_j lambda_j m_j^2 dt = (|s(0)|^2 - |s(t)|^2) / (2 speed), by Simpson's rule."""
        X, y, prior = problem()
        step, q, values = 0.002, prior, []
        for _ in range(101):
            values.append((relative.strengths(X, q) @ q.mean.square()).item())
            final, q = q, relative.gradient_flow(X, y, q, step, speed=0.5)
        odd, even = sum(values[1::2]), sum(values[2:-1:2])
        integral = step / 3 * (values[0] + 4 * odd + 2 * even + values[-1])
        lost = prior.s.square().sum() - final.s.square().sum()
        assert integral == pytest.approx(lost.item() / (2 * 0.5), rel=1e-5)

    def test_at_a_high_speed_it_is_plain_gradient_flow(self):
        """The distance is at most sqrt(max lambda(0) t |s(0)|^2 / (2 speed))."""
        X, y, prior = problem()
        plain = regression.gradient_flow(X, y, prior.normal, 1.0).mean
        largest, total = relative.strengths(X, prior).max(), prior.s.square().sum()
        gaps = []
        for speed in (1.0, 10.0, 100.0):
            gap = (relative.gradient_flow(X, y, prior, 1.0, speed).mean - plain).norm()
            assert gap <= (largest * total / (2 * speed)).sqrt()
            gaps.append(gap)
        assert gaps[2] < gaps[1] < gaps[0]


class TestRidge:
    def test_it_is_stationary_and_noise_stays(self):
        X, y, prior = problem()
        found = relative.ridge(X, y, prior)
        assert relative.gradients(X, y, found)[0].norm() < 1e-12
        assert (found.normal.predict(X)[1] > 1e-3).all()

    def test_without_noise_it_is_the_closest_fit(self):
        X, y, prior = problem()
        found = relative.ridge(X, y, Weights(prior.mean, torch.zeros(6)))
        assert_close(found.mean, regression.limit(X, y, prior.normal).mean, atol=1e-10, rtol=0)

    def test_predictions_do_not_depend_on_units(self):
        X, y, prior = problem()
        units = torch.tensor([1e-2, 0.1, 1.0, 3.0, 10.0, 100.0]).double()
        found = relative.ridge(X * units, y, prior).mean * units
        assert_close(found, relative.ridge(X, y, prior).mean, atol=1e-9, rtol=0)


class TestSlowFlow:
    def test_it_is_the_limit_of_small_speeds(self):
        """The distance is of first order in the speed."""
        X, y, prior = problem(N=8)
        slow, gaps = relative.slow_flow(X, y, prior, 0.1), []
        for speed in (0.01, 0.005, 0.0025):
            flow = relative.gradient_flow(X, y, prior, 0.1 / speed, speed)
            gaps.append((flow.mean - slow.mean).norm() + (flow.s - slow.s).norm())
        assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.2)
        assert gaps[1] / gaps[2] == pytest.approx(2, rel=0.1)

    def test_it_descends_the_minimum_over_means(self):
        """d lambda_j / dt = -4 |X_j|^2 lambda_j dF/dlambda_j, with F by autograd."""
        X, y, prior = problem()
        strengths = relative.strengths(X, prior).requires_grad_()
        H = X.T @ X + torch.diag(strengths)
        F = (y @ y - (X.T @ y) @ torch.linalg.solve(H, X.T @ y)) / 2
        (slope,) = torch.autograd.grad(F, strengths)
        expected = -4 * X.square().sum(0) * strengths.detach() * slope
        change = 1e-5
        after = relative.strengths(X, relative.slow_flow(X, y, prior, change))
        found = (after - strengths.detach()) / change
        assert_close(found, expected, atol=1e-4, rtol=1e-3)

    def test_for_one_data_point_the_least_noisy_column_takes_the_target(self):
        X, y = torch.tensor([[1.0, -2.0, 0.5, 3.0]]), torch.tensor([2.0])
        prior = Weights(torch.zeros(4), torch.tensor([0.5, 0.4, -0.3, 0.4]))
        final = relative.slow_flow(X, y, prior, 10.0)
        assert_close(final.mean, torch.tensor([0.0, 0.0, 4.0, 0.0]).double(), atol=1e-6, rtol=0)
        assert (final.s[[0, 1, 3]] > 0.2).all()

    def test_for_one_data_point_equally_noisy_columns_share_it(self):
        X, y = torch.tensor([[1.0, -2.0, 0.5, 3.0]]), torch.tensor([2.0])
        prior = Weights(torch.zeros(4), torch.tensor([0.9, 0.3, -0.3, 0.9]))
        shares = relative.slow_flow(X, y, prior, 1.0).mean * X[0]
        assert_close(shares[1], shares[2], atol=1e-6, rtol=0)
        assert (shares[1:3] > 20 * shares[[0, 3]]).all()

    @pytest.mark.parametrize(("seed", "same"), [(3, True), (4, True), (28, False)])
    def test_for_more_it_is_often_but_not_always_the_sparse_fit(self, seed, same):
        X, y, prior = problem(N=2, P=3, seed=seed)
        found = relative.slow_flow(X, y, prior, 100.0).mean
        costs = prior.s.square() * X.norm(dim=0)
        sparse = linprog(
            torch.cat([costs, costs]).numpy(), A_eq=torch.cat([X, -X], 1).numpy(), b_eq=y.numpy()
        )
        assert_close(X @ found, y, atol=1e-6, rtol=0)
        assert (abs(costs @ found.abs() - sparse.fun) < 1e-6 * sparse.fun) == same


class TestBound:
    @pytest.mark.parametrize("speed", [0.0, 0.1, 2.0])
    @pytest.mark.parametrize("time", [0.3, 3.0, 30.0])
    def test_the_loss_is_below_it(self, time, speed):
        X, y, prior = problem()
        loss = relative.expected_loss(X, y, relative.gradient_flow(X, y, prior, time, speed))
        assert loss <= least(lambda u: relative_bound(X, y, prior, u, time, speed), prior.mean)

    def test_the_slow_flow_is_below_it(self):
        X, y, prior = problem()
        for time in (0.3, 3.0, 30.0):
            loss = relative.expected_loss(X, y, relative.slow_flow(X, y, prior, time))

            def without_start(u, time=time):
                start = (u - prior.mean).square().sum() / (2 * time)
                return relative_bound(X, y, prior, u, time, 1.0) - start

            assert loss <= least(without_start, prior.mean)

    def test_the_function_is_the_formula(self):
        X, y, prior = problem()
        u = torch.arange(6.0).double()
        formula = relative_bound(X, y, prior, u, 3.0, 0.1).item()
        assert relative.bound(X, y, prior, u, 3.0, 0.1) == pytest.approx(formula, rel=1e-12)


def relative_bound(X, y, prior, u, time, speed):
    """Return the bound, differentiable, as the minimum over strengths b of L(u, b) + D(0) / t."""
    a, start = X.square().sum(0), relative.strengths(X, prior)
    # The minimum over b_j of b_j u_j^2 / 2 + (b_j - start_j)^2 / (8 speed time a_j b_j).
    rate = 8 * speed * time * a
    b = start / torch.sqrt(1 + rate * u.square() / 2)
    distance = (b - start).square() / (b * rate) if speed else torch.zeros_like(b)
    fit = (y - X @ u).square().sum() / 2 + (u - prior.mean).square().sum() / (2 * time)
    return fit + (b * u.square() / 2 + distance).sum()


def least(function, start):
    """Return the minimum of a convex function."""
    u = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([u], max_iter=500, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = function(u)
        value.backward()
        return value

    optimizer.step(closure)
    return function(u).item()


class TestErrors:
    def test_shapes(self):
        with pytest.raises(ValueError, match=r"expected a mean and an s of shape \(P,\)"):
            Weights(torch.ones(2), torch.ones(3))
        with pytest.raises(ValueError, match=r"received \(3, 2\), \(3, 1\) and \(2,\)"):
            relative.ridge(
                torch.ones(3, 2), torch.ones(3, 1), Weights(torch.ones(2), torch.ones(2))
            )

    def test_time(self):
        X, y, prior = problem()
        with pytest.raises(ValueError, match="a finite time of at least 0, received -1"):
            relative.gradient_flow(X, y, prior, -1.0, 1.0)
