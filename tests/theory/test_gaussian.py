import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from tacit import theory
from tacit.theory import Normal

GENERATOR = torch.Generator().manual_seed(0)


def randn(*shape):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


def normal(P=5, R=5):
    return Normal(randn(P), randn(P, R))


class TestKL:
    def test_agrees_with_torch(self):
        q, p = normal(), normal()
        expected = kl_divergence(
            MultivariateNormal(q.mean, q.covariance), MultivariateNormal(p.mean, p.covariance)
        )
        assert theory.kl(q, p) == pytest.approx(expected.item(), rel=1e-8)

    def test_is_zero_for_equal_distributions_also_singular_ones(self):
        for R in (2, 5):
            q = normal(R=R)
            assert theory.kl(q, q) == pytest.approx(0, abs=1e-9)

    def test_is_infinite_off_the_support(self):
        for _ in range(50):
            q, p = normal(), normal(R=2)
            assert theory.kl(q, p) == math.inf  # q has variance where p has none
            assert theory.kl(p, q) == math.inf  # and the other way round

    def test_on_a_common_subspace_it_is_the_kl_of_the_densities(self):
        q, p = normal(2, 2), normal(2, 2)
        basis = torch.linalg.qr(randn(5, 2))[0]
        assert theory.kl(q.project(basis), p.project(basis)) == pytest.approx(theory.kl(q, p))


class TestWasserstein:
    @pytest.mark.parametrize(("R", "R0"), [(5, 5), (2, 5), (5, 1), (2, 3)])
    def test_full_and_factored_form_agree(self, R, R0):
        q, p = normal(R=R), normal(R=R0)
        assert theory.squared_wasserstein_by_factors(q, p) == pytest.approx(
            theory.squared_wasserstein(q, p), rel=1e-6
        )

    def test_of_commuting_covariances_is_the_distance_of_the_roots(self):
        mean, std, std0 = randn(4), randn(4).abs(), randn(4).abs()
        q, p = Normal(mean, torch.diag(std)), Normal(0 * mean, torch.diag(std0))
        expected = mean.square().sum() + (std - std0).square().sum()
        assert theory.squared_wasserstein(q, p) == pytest.approx(expected.item())

    def test_is_a_metric(self):
        def distance(a, b):
            return theory.squared_wasserstein_by_factors(a, b) ** 0.5

        for _ in range(50):
            a, b, c = (normal(R=3) for _ in range(3))
            assert distance(a, c) <= distance(a, b) + distance(b, c)
            assert distance(b, a) == pytest.approx(distance(a, b))
        assert theory.squared_wasserstein_by_factors(a, a) == pytest.approx(0, abs=1e-9)
        # Equality holds on the geodesic between two, here with commuting covariances.
        ends = [Normal(randn(3), torch.diag(randn(3).abs())) for _ in range(2)]
        between = Normal(
            0.3 * ends[0].mean + 0.7 * ends[1].mean, 0.3 * ends[0].factor + 0.7 * ends[1].factor
        )
        assert distance(ends[0], between) == pytest.approx(0.7 * distance(*ends))

    def test_bounds_every_coupling(self):
        """The distance is a minimum over couplings; sharing the noise is one of them."""
        q, p = normal(R=3), normal(R=3)
        by_equal_noise = (q.mean - p.mean).square().sum() + (q.factor - p.factor).square().sum()
        assert theory.squared_wasserstein(q, p) <= by_equal_noise.item()

    def test_claim_w2_subspace(self):
        """Lemma S1: the distance decomposes over a subspace without variance and its complement."""
        basis = torch.linalg.qr(randn(6, 2))[0]
        off = torch.eye(6, dtype=torch.float64) - basis @ basis.T
        p = normal(6, 4)
        for R in (1, 3, 6):
            q = Normal(randn(6), off @ randn(6, R))
            parts = theory.squared_wasserstein_by_subspaces(q, p, basis)
            assert sum(parts) == pytest.approx(theory.squared_wasserstein(q, p), rel=1e-6)
            assert parts[2] == pytest.approx((basis.T @ p.covariance @ basis).trace().item())

    def test_refuses_variance_on_the_subspace(self):
        with pytest.raises(ValueError, match="q has variance on the subspace"):
            theory.squared_wasserstein_by_subspaces(normal(), normal(), torch.eye(5, 2).double())


def test_predictions_agree_with_draws():
    q, x = normal(5, 3), randn(4, 5)
    mean, variance = q.predict(x)
    draws = x @ (q.mean[:, None] + q.factor @ randn(3, 200_000))
    standard_error = (2 / 200_000) ** 0.5
    assert torch.allclose(mean, draws.mean(1), atol=5 * (variance.max() / 200_000).sqrt().item())
    assert torch.allclose(variance, draws.var(1), rtol=5 * standard_error)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"expected a mean of shape \(P,\)"):
        Normal(randn(3), randn(4, 2))


class TestProjections:
    def test_null_and_range(self):
        X = randn(3, 7)
        null, on = theory.null_projection(X), theory.range_projection(X)
        assert torch.allclose(null + on, torch.eye(7, dtype=torch.float64))
        assert torch.allclose(null @ null, null)
        assert torch.allclose(X @ null, torch.zeros(3, 7, dtype=torch.float64), atol=1e-12)

    def test_dependent_rows_count_once(self):
        X = randn(2, 5)
        X = torch.cat([X, X.sum(0, keepdim=True)])
        assert theory.range_projection(X).trace().item() == pytest.approx(2)

    @pytest.mark.parametrize("R", [2, 4, 7])
    def test_from_a_factor(self, R):
        X = randn(3, 7)
        null = theory.null_projection(X)
        found = theory.null_projection_from_factor(null @ randn(7, R))
        if R >= 4:
            assert torch.allclose(found, null)
        assert found.trace().item() == pytest.approx(min(R, 4))
        assert torch.allclose(X @ found, torch.zeros(3, 7, dtype=torch.float64), atol=1e-10)
