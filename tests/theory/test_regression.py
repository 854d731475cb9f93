"""Linear regression claims: training by the library against closed forms from the theory."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import tacit
from tacit import theory
from tacit.calling.moments import expected_squared_error, output_moments
from tacit.theory import Normal, regression

P = 8
OPTIMIZERS = {
    "GD": {},
    "momentum": {"momentum": 0.9},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
}


def problem(seed=0, deficient=False):
    """Return three examples in eight dimensions; if deficient, a fourth is the sum of two."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(P, 3, generator=generator, dtype=torch.float64))[0]
    X = torch.tensor([1.5, 1.2, 1.0], dtype=torch.float64)[:, None] * basis.T
    y = torch.randn(3, generator=generator, dtype=torch.float64)
    if deficient:
        X, y = torch.cat([X, X[:1] + X[1:2]]), torch.cat([y, y[:1] + y[1:2]])
    return X, y


def linear_model(rank, seed=0, **kwargs):
    torch.manual_seed(seed)
    where = {"": tacit.LowRank(rank)}
    return tacit.variational(nn.Linear(P, 1, bias=False).double(), where, **kwargs)


def state(model):
    distribution = model.distributions[""]
    return Normal(distribution.dense_mean(), distribution.dense_factor())


def assert_equal(q, p, tolerance=1e-8):
    assert_close(q.mean, p.mean, atol=tolerance, rtol=0)
    assert_close(q.factor, p.factor, atol=tolerance, rtol=0)


def exact_loss(model, X, y):
    """Return the paper's expected loss, a sum with 1/2, computed by the library."""
    return expected_squared_error(*output_moments(model, X), y[:, None]) * len(y) / 2


def train(model, X, y, steps, lr=0.2, loss=exact_loss, batches=None, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, **settings)
    for step in range(steps):
        rows = batches[step] if batches else slice(None)
        optimizer.zero_grad()
        loss(model, X[rows], y[rows]).backward()
        optimizer.step()
        yield state(model)


def last(iterator):
    for item in iterator:
        final = item
    return final


def random_batches(steps, size, N, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(N, generator=generator)[:size] for _ in range(steps)]


class TestRegressionLimit:
    @pytest.mark.parametrize("deficient", [False, True])
    @pytest.mark.parametrize("rank", [1, 3, P])
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_training_ends_at_the_limit(self, optimizer, rank, deficient):
        """Theorem 1, claim `regression-limit`."""
        X, y = problem(deficient=deficient)
        model = linear_model(rank)
        prior = state(model)
        final = last(train(model, X, y, 500, lr=0.05, **OPTIMIZERS[optimizer]))
        if optimizer == "GD":
            final = last(train(model, X, y, 500, lr=0.2))
        assert_equal(final, regression.limit(X, y, prior))

    @pytest.mark.parametrize("deficient", [False, True])
    @pytest.mark.parametrize("rank", [1, 3, P])
    def test_also_by_sgd(self, rank, deficient):
        X, y = problem(deficient=deficient)
        model = linear_model(rank)
        prior = state(model)
        batches = random_batches(1500, 1, len(X))
        final = last(train(model, X, y, 1500, lr=0.3, batches=batches))
        assert_equal(final, regression.limit(X, y, prior))

    @pytest.mark.parametrize("kwargs", [{}, {"samples": 4}, {"draws": 3}])
    def test_also_with_sampled_weights(self, kwargs):
        """Gradient noise vanishes with X S, so training converges to the exact limit."""
        X, y = problem()
        model = linear_model(3)
        prior = state(model)

        def sampled(model, X, y):
            outputs = model(X, **kwargs)
            return F.mse_loss(outputs, y[:, None].expand_as(outputs)) * len(y) / 2

        final = last(train(model, X, y, 2500, lr=0.05, loss=sampled))
        assert_equal(final, regression.limit(X, y, prior), tolerance=1e-7)

    @pytest.mark.parametrize("noise", [tacit.noise.Laplace(), tacit.noise.StudentT(5)])
    def test_also_with_other_noise(self, noise):
        """The expected loss depends on mean and covariance alone."""
        X, y = problem()
        model = linear_model(3, noise=noise)
        prior = state(model)

        def sampled(model, X, y):
            return F.mse_loss(model(X), y[:, None]) * len(y) / 2

        final = last(train(model, X, y, 3000, lr=0.03, loss=sampled))
        assert_equal(final, regression.limit(X, y, prior), tolerance=1e-6)

    @pytest.mark.parametrize(("speed", "steps"), [(0.1, 3000), (3.0, 200)])
    def test_also_with_factors_at_another_speed(self, speed, steps):
        """P_null S never changes, and X S = 0 in the limit."""
        X, y = problem()
        model = linear_model(3)
        prior = state(model)
        optimizer = torch.optim.SGD(model.param_groups(lr=0.2, factor_speed=speed))
        for _ in range(steps):
            optimizer.zero_grad()
            exact_loss(model, X, y).backward()
            optimizer.step()
        assert_equal(state(model), regression.limit(X, y, prior))

    def test_a_diagonal_factor_vanishes(self):
        """Only its mean has the limit of a dense factor; docs/why-it-works.md."""
        X, y = problem()
        torch.manual_seed(0)
        net = nn.Linear(P, 1, bias=False).double()
        model = tacit.variational(net, {"": tacit.Diagonal()})
        prior = state(model)
        final = last(train(model, X, y, 1500, lr=0.2))
        assert_close(final.mean, regression.limit(X, y, prior).mean, atol=1e-8, rtol=0)
        assert final.factor.abs().max() < 1e-6 * prior.factor.abs().max()

    def test_the_sampled_gradient_is_unbiased(self):
        """Every entry is within 5 standard errors of the analytic gradient."""
        X, y = problem()
        model = linear_model(3)
        exact = torch.autograd.grad(exact_loss(model, X, y), list(model.parameters()))
        torch.manual_seed(1)
        found = []
        for _ in range(4000):
            loss = (model(X)[:, 0] - y).square().sum() / 2
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            found.append(torch.cat([gradient.flatten() for gradient in gradients]))
        sample = torch.stack(found)
        error = sample.std(0) / math.sqrt(len(sample))
        expected = torch.cat([gradient.flatten() for gradient in exact])
        assert ((sample.mean(0) - expected).abs() <= 5 * error).all()

    def test_it_is_the_closest_of_all_minimizers(self):
        X, y = problem()
        prior = state(linear_model(3))
        ours = regression.limit(X, y, prior)
        assert regression.is_minimizer(X, y, ours)
        distance = theory.squared_wasserstein_by_factors(ours, prior)
        generator = torch.Generator().manual_seed(0)
        for _ in range(200):
            other = regression.random_minimizer(X, y, 3, generator=generator)
            assert regression.is_minimizer(X, y, other)
            assert theory.squared_wasserstein_by_factors(other, prior) > distance
            # Also of minimisers close to ours.
            near = Normal(
                ours.mean + 0.01 * (other.mean - ours.mean),
                ours.factor + 0.01 * (other.factor - ours.factor),
            )
            assert regression.is_minimizer(X, y, near)
            assert theory.squared_wasserstein_by_factors(near, prior) > distance

    def test_the_loss_agrees_with_the_library(self):
        X, y = problem()
        model = linear_model(3)
        ours = regression.expected_loss(X, y, state(model))
        assert exact_loss(model, X, y).item() == pytest.approx(ours, rel=1e-12)


class TestRegressionInterpolates:
    def test_all_draws_fit_the_data_and_keep_the_prior_elsewhere(self):
        X, y = problem()
        model = linear_model(P)
        prior = state(model)
        last(train(model, X, y, 800))
        draws = model(X, samples=20)[..., 0]
        assert_close(draws, y.expand(20, -1), atol=1e-8, rtol=0)
        away = theory.null_projection(X)[:2]  # inputs orthogonal to the data
        for ours, before in zip(state(model).predict(away), prior.predict(away), strict=True):
            assert_close(ours, before, atol=1e-10, rtol=0)

    def test_training_with_kl_finds_the_posterior_and_does_not_collapse(self):
        X, y = problem()
        torch.manual_seed(0)
        net = nn.Linear(P, 1, bias=False).double()
        model = tacit.variational(net, {"": tacit.FullRank(scale=3.0)})
        prior = state(model)
        objective = tacit.ELBO(model.prior())

        def loss(model, X, y):
            return objective(exact_loss(model, X, y) / len(y), model, data_size=len(y)) * len(y)

        optimizer = torch.optim.LBFGS(
            model.parameters(), max_iter=2000, line_search_fn="strong_wolfe", tolerance_change=1e-16
        )

        def closure():
            optimizer.zero_grad()
            value = loss(model, X, y)
            value.backward()
            return value

        optimizer.step(closure)
        expected = regression.posterior(X, y, prior)
        assert_close(state(model).mean, expected.mean, atol=1e-4, rtol=1e-4)
        assert_close(state(model).covariance, expected.covariance, atol=1e-4, rtol=1e-3)
        assert (state(model).predict(X)[1] > 0.1).all()


class TestEnsembleEquivalence:
    def test_trained_members_are_draws_of_the_trained_model(self):
        X, y = problem()
        model = linear_model(3)
        prior = state(model)
        z = torch.randn(3, 5, dtype=torch.float64)
        members = prior.mean[:, None] + prior.factor @ z
        for _ in range(800):
            members = members - 0.2 * X.T @ (X @ members - y[:, None])
        final = last(train(model, X, y, 800))
        assert_close(final.mean[:, None] + final.factor @ z, members, atol=1e-8, rtol=0)

    def test_the_closed_form_is_the_limit(self):
        for deficient in (False, True):
            X, y = problem(deficient=deficient)
            prior = state(linear_model(3))
            assert_equal(
                regression.ensemble(X, y, prior), regression.limit(X, y, prior), tolerance=1e-12
            )


class TestErrorEqualsVariance:
    """With targets from the prior, E[error^2] of the mean is the variance, at every step.

    The error is linear in the noise z of the true weights mu0 + S0 z, so its expected square is the
    sum of the squared errors for the unit vectors z: one training run for each column of S0.
    """

    @pytest.mark.parametrize("rank", [2, P])
    def test_at_every_step_of_sgd(self, rank):
        X, _ = problem()
        x = torch.randn(5, P, dtype=torch.float64)
        steps, prior = 100, state(linear_model(rank))
        batches = random_batches(steps, 2, len(X))
        rates = [0.05 + 0.3 * torch.rand(()).item() for _ in range(steps)]
        errors = torch.zeros(steps, 5, dtype=torch.float64)
        for column in prior.factor.T:
            truth = prior.mean + column
            variances = []
            for step, now in enumerate(self._run(rank, X, X @ truth, batches, rates)):
                errors[step] += (x @ (now.mean - truth)).square()
                variances.append(now.predict(x)[1])
        assert_close(torch.stack(variances), errors, atol=1e-10, rtol=0)

    @staticmethod
    def _run(rank, X, y, batches, rates):
        model = linear_model(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for rows, lr in zip(batches, rates, strict=True):
            optimizer.param_groups[0]["lr"] = lr
            optimizer.zero_grad()
            exact_loss(model, X[rows], y[rows]).backward()
            optimizer.step()
            yield state(model)

    def test_at_every_time_of_gradient_flow(self):
        X, _ = problem()
        x = torch.randn(5, P, dtype=torch.float64)
        prior = state(linear_model(3))
        for time in (0.0, 0.1, 1.0, 10.0):
            errors = torch.zeros(5, dtype=torch.float64)
            for column in prior.factor.T:
                truth = prior.mean + column
                now = regression.gradient_flow(X, X @ truth, prior, time)
                errors += (x @ (now.mean - truth)).square()
            assert_close(now.predict(x)[1], errors, atol=1e-12, rtol=0)

    def test_the_trace_never_grows_with_small_rates(self):
        X, y = problem()
        lr = 1 / torch.linalg.eigvalsh(X.T @ X).max().item()
        model = linear_model(P)
        traces = [state(model).covariance.trace().item()]
        traces += [q.covariance.trace().item() for q in train(model, X, y, 50, lr=lr)]
        assert all(after <= before + 1e-12 for before, after in zip(traces, traces[1:]))  # noqa: B905, RUF007


class TestTrajectories:
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_every_iterate_agrees_with_torch(self, optimizer):
        X, y = problem()
        model = linear_model(3)
        settings = OPTIMIZERS[optimizer]
        batches = random_batches(60, 2, len(X))
        theirs = regression.gradient_descent(
            X, y, state(model), [(rows, 0.1) for rows in batches], **settings
        )
        ours = train(model, X, y, 60, lr=0.1, batches=batches, **settings)
        for a, b in zip(ours, theirs, strict=True):
            assert_equal(a, b, tolerance=1e-10)

    def test_gradient_flow_is_descent_with_small_steps(self):
        X, y = problem()
        prior = state(linear_model(3))
        for steps, tolerance in ((1000, 3e-3), (10_000, 3e-4)):
            batches = [(slice(None), 2.0 / steps)] * steps
            final = last(regression.gradient_descent(X, y, prior, batches))
            flow = regression.gradient_flow(X, y, prior, 2.0)
            assert (final.mean - flow.mean).norm() < tolerance
            assert (final.factor - flow.factor).norm() < tolerance

    def test_flow_begins_at_the_prior_and_ends_at_the_limit(self):
        X, y = problem(deficient=True)
        prior = state(linear_model(3))
        assert_equal(regression.gradient_flow(X, y, prior, 0.0), prior, tolerance=1e-12)
        end = regression.gradient_flow(X, y, prior, 100.0)
        assert_equal(end, regression.limit(X, y, prior), tolerance=1e-10)


class TestGeneralizedVI:
    """The claim `wide-gvi` in the linear case."""

    def test_training_with_gvi_ends_at_its_closed_form(self):
        X, y = problem()
        model = linear_model(3)
        prior = state(model)
        objective = tacit.GVI(model.prior(), strength=0.3)

        def loss(model, X, y):
            return objective(exact_loss(model, X, y) / len(y), model, data_size=len(y)) * len(y)

        final = last(train(model, X, y, 600, lr=0.2, loss=loss))
        assert_equal(final, regression.generalized(X, y, prior, 0.3), tolerance=1e-7)

    def test_for_a_vanishing_strength_it_is_the_limit_of_the_expected_loss(self):
        X, y = problem()
        prior = state(linear_model(3))
        end = regression.limit(X, y, prior)
        gaps = []
        for strength in (1e-2, 1e-3, 1e-4):
            found = regression.generalized(X, y, prior, strength)
            gaps.append((found.mean - end.mean).norm() + (found.factor - end.factor).norm())
        assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.1)
        assert gaps[1] / gaps[2] == pytest.approx(10, rel=0.01)

    def test_the_limit_is_stationary_for_no_positive_strength(self):
        """The loss has gradient 0 there and the distance doesn't, so no strength balances them."""
        X, y = problem()
        model = linear_model(3)
        frozen = model.prior()
        last(train(model, X, y, 800))
        loss = exact_loss(model, X, y)
        distance = tacit.divergence.squared_wasserstein(model, frozen)[""]
        parameters = list(model.parameters())
        for gradient in torch.autograd.grad(loss, parameters):
            assert gradient.norm() < 1e-8
        for gradient in torch.autograd.grad(distance, parameters):
            assert gradient.norm() > 0.1


def test_shapes_are_checked():
    prior = Normal(torch.zeros(2), torch.ones(2, 1))
    with pytest.raises(ValueError, match=r"expected X of shape \(N, P\) and y of shape \(N,\)"):
        regression.limit(torch.ones(3, 2), torch.ones(3, 1), prior)
