"""CRPS and quantiles of mixtures against their definitions."""

import math

import pytest
import torch
from torch.testing import assert_close

from tacit.likelihood.predictive import RegressionPredictive, mixture

GENERATOR = torch.Generator().manual_seed(0)


def randn(*shape):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


def pairwise_crps(means, scales, y):
    """The definition: mean_i E|y - X_i| minus half of mean_ij E|X_i - X_j|."""

    def expected_absolute(m, s):
        z = m / s.clamp_min(torch.finfo(m.dtype).tiny)
        density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
        return 2 * s * density + m * (2 * torch.special.ndtr(z) - 1)

    between = expected_absolute(
        means[:, None] - means[None], torch.hypot(scales[:, None], scales[None])
    ).mean((0, 1))
    return expected_absolute(y - means, scales).mean(0) - between / 2


SCALES = {
    "equal": lambda shape: torch.full(shape, 0.7, dtype=torch.float64),
    "unequal": lambda shape: 0.3 + randn(*shape).abs(),
    "over many orders": lambda shape: randn(*shape).mul(3).exp(),
    "some 0": lambda shape: randn(*shape).clamp_min(0),
    "all 0": lambda shape: torch.zeros(shape, dtype=torch.float64),
}


class TestMixture:
    @pytest.mark.parametrize("kind", SCALES)
    @pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 30.0, 1e4])
    @pytest.mark.parametrize("size", [(1, 9), (2, 9), (60, 4, 2)])
    def test_crps_equals_the_sum_over_pairs(self, kind, spread, size):
        means, scales, y = 3 + spread * randn(*size), SCALES[kind](size), 3 + randn(*size[1:])
        expected = pairwise_crps(means, scales, y)
        p = RegressionPredictive(means, scales)
        assert_close(p.crps(y), expected, atol=1e-10, rtol=1e-10)
        single = p.to(torch.float32)
        exact = pairwise_crps(single.means.double(), single.scales.double(), y.float().double())
        largest = (y - means).abs().mean(0) + scales.mean(0)
        assert ((single.crps(y.float()) - exact).abs() <= 1e-5 * largest).all()

    def test_it_takes_the_integral_and_pairs_and_any_blocks(self, monkeypatch):
        means, scales = (
            randn(60, 40) * torch.logspace(-2, 4, 40),
            torch.full((60, 40), 0.5).double(),
        )
        used = []
        for name in ("_integral", "_near_pairs"):
            function = getattr(mixture, name)
            monkeypatch.setattr(
                mixture, name, lambda *a, f=function, n=name: used.append(n) or f(*a)
            )
        expected = pairwise_crps(means, scales, torch.zeros(40).double())
        for block in (60, 500, 2**18):
            monkeypatch.setattr(mixture, "BLOCK", block)
            found = RegressionPredictive(means, scales).crps(torch.zeros(40).double())
            assert_close(found, expected, atol=1e-10, rtol=1e-10)
        assert set(used) == {"_integral", "_near_pairs"}

    @pytest.mark.parametrize("spread", [0.3, 100.0])
    def test_gradients_of_crps_equal_those_of_the_definition(self, spread):
        means, scales, y = spread * randn(60, 3), 0.3 + randn(60, 3).abs(), randn(3)
        given = [t.requires_grad_() for t in (means, scales)]
        expected = torch.autograd.grad(pairwise_crps(*given, y).sum(), given)
        found = torch.autograd.grad(RegressionPredictive(*given).crps(y).sum(), given)
        assert_close(found, expected, atol=1e-10, rtol=1e-8)

    @pytest.mark.parametrize("kind", SCALES)
    @pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 1e4])
    @pytest.mark.parametrize("q", [0.001, 0.3, 0.5, 0.95])
    def test_quantiles_are_where_the_cdf_passes(self, kind, spread, q):
        p = RegressionPredictive(3 + spread * randn(20, 9), SCALES[kind]((20, 9)))
        x = p.quantile(q)
        near = 1e-12 * (1 + x.abs() + p.std)
        assert (p.cdf(x - near) <= q + 1e-12).all()
        assert (p.cdf(x + near) >= q - 1e-12).all()

    def test_quantiles_of_nan_are_nan(self):
        p = RegressionPredictive(torch.tensor([[1.0, math.nan], [2.0, 0.0]]), torch.ones(2, 2))
        assert p.quantile(0.3).isnan().tolist() == [False, True]
        assert p.crps(torch.zeros(2)).isnan().tolist() == [False, True]

    def test_no_examples(self):
        p = RegressionPredictive(torch.zeros(5, 0), torch.ones(5, 0))
        assert p.quantile(0.5).shape == p.crps(torch.zeros(0)).shape == (0,)
