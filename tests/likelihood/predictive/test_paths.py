"""Sample paths of several outputs, joint intervals and their coverage."""

import math

import pytest
import torch
from torch.testing import assert_close

from tacit.likelihood.predictive import RegressionPredictive


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def walks(functions=50, examples=3, steps=6, noise=0.3, seed=0):
    """Functions that are random walks: neighbouring outputs depend on each other."""
    steps = torch.randn(functions, examples, steps, generator=seeded(seed), dtype=torch.float64)
    means = steps.cumsum(-1)
    return RegressionPredictive(means, torch.full_like(means, noise))


class TestSamplePaths:
    @pytest.mark.parametrize("shape", [(3,), (3, 6), (3, 6, 2)])
    def test_shapes(self, shape):
        means = torch.zeros(4, *shape)
        drawn = RegressionPredictive(means, torch.ones_like(means)).sample(7, generator=seeded())
        assert drawn.shape == (7, *shape)
        assert drawn.dtype == means.dtype

    def test_without_noise_each_path_is_one_function(self):
        p = walks(functions=5, noise=0.0)
        drawn = p.sample(12, generator=seeded())
        of = (drawn[:, None] == p.means).flatten(2).all(-1)  # (paths, functions)
        assert (of.sum(1) == 1).all()
        assert sorted(of.sum(0).tolist()) == [2, 2, 2, 3, 3]

    def test_moments_are_those_of_the_mixture(self):
        p = walks(examples=1, steps=4)
        drawn = p.sample(20000, generator=seeded())[:, 0]
        centred = p.means[:, 0] - p.mean[0]
        expected = centred.T @ centred / len(centred) + 0.09 * torch.eye(4).double()
        error = drawn.std(0) / math.sqrt(20000)
        assert ((drawn.mean(0) - p.mean[0]).abs() < 4 * error).all()
        # The standard error of a sample covariance is about sqrt((v_i v_j + c_ij^2) / n).
        variances = expected.diagonal()
        bound = ((variances[:, None] * variances + expected.square()) / 20000).sqrt()
        assert ((drawn.T.cov() - expected).abs() < 5 * bound).all()

    def test_a_generator_makes_them_reproducible(self):
        p = walks()
        assert_close(p.sample(9, generator=seeded(3)), p.sample(9, generator=seeded(3)))
        assert not torch.equal(p.sample(9, generator=seeded(3)), p.sample(9, generator=seeded(4)))

    @pytest.mark.parametrize("wrong", [0, -1, 1.5])
    def test_another_number(self, wrong):
        with pytest.raises((ValueError, TypeError), match="n: expected"):
            walks().sample(wrong)


class TestJointIntervals:
    @pytest.mark.parametrize("level", [0.5, 0.9])
    def test_they_contain_the_share_of_new_paths(self, level):
        p = walks()
        low, high = p.interval(level, joint=True, draws=4000, generator=seeded(1))
        drawn = p.sample(4000, generator=seeded(2))
        inside = ((low <= drawn) & (drawn <= high)).all(-1).double().mean(0)
        # Both the factor and this share come from 4,000 paths.
        bound = 4 * math.sqrt(2 * level * (1 - level) / 4000)
        assert ((inside - level).abs() < bound).all()
        single = p.interval(level)
        central = ((single[0] <= drawn) & (drawn <= single[1])).all(-1).double().mean(0)
        assert (central < level - bound).all()

    def test_independent_outputs_agree_with_the_closed_form(self):
        means = torch.zeros(1, 1, 8, dtype=torch.float64)
        p = RegressionPredictive(means, torch.ones_like(means))
        low, high = p.interval(0.9, joint=True, draws=20000, generator=seeded())
        assert_close(low, -high)
        each = torch.special.ndtri(torch.tensor((1 + 0.9 ** (1 / 8)) / 2, dtype=torch.float64))
        # Standard error of the 0.9-quantile of max |z|, whose density there is about 0.34.
        error = math.sqrt(0.09 / 20000) / 0.34
        assert ((high - each).abs() < 4 * error).all()

    def test_identical_outputs_need_no_factor(self):
        means = torch.randn(2000, 1, 1, generator=seeded(), dtype=torch.float64).expand(-1, 2, 5)
        p = RegressionPredictive(means, torch.zeros_like(means))
        joint = p.interval(0.8, joint=True, draws=2000, generator=seeded())
        for found, expected in zip(joint, p.interval(0.8), strict=True):
            assert_close(found, expected, rtol=0.02, atol=0.02)

    def test_one_output_is_the_central_interval(self):
        for shape in ((5,), (5, 1)):
            means = torch.randn(4, *shape, generator=seeded())
            p = RegressionPredictive(means, torch.ones_like(means))
            for found, expected in zip(p.interval(joint=True), p.interval(), strict=True):
                assert torch.equal(found, expected)

    def test_functions_that_agree_at_some_outputs(self):
        p = walks(noise=0.0)
        means = torch.cat([torch.full_like(p.means[..., :1], 100.0), p.means], -1).float()
        low, high = RegressionPredictive(means, torch.zeros_like(means)).interval(
            0.9, joint=True, generator=seeded()
        )
        assert (low[:, 0] <= 100).all()
        assert (high[:, 0] - low[:, 0] < 1e-2).all()
        expected = p.interval(0.9, joint=True, generator=seeded())
        assert_close(low[:, 1:].double(), expected[0], rtol=1e-3, atol=1e-3)
        assert_close(high[:, 1:].double(), expected[1], rtol=1e-3, atol=1e-3)

    def test_blocks_of_examples(self, monkeypatch):
        monkeypatch.setattr("tacit.likelihood.predictive.paths.BLOCK", 6000)
        p = walks()
        low, high = p.interval(0.9, joint=True, generator=seeded())
        assert low.shape == high.shape == (3, 6)
        assert (low < p.quantile(0.5)).all()
        assert p[:0].interval(joint=True)[0].shape == (0, 6)

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="draws: expected"):
            walks().interval(0.9, joint=True, draws=0)
        with pytest.raises(ValueError, match="interval: expected a number between 0 and 1"):
            walks().interval(1.0, joint=True)


class TestCoverage:
    def test_by_output_and_jointly_for_targets_of_the_model(self):
        p = walks(examples=400, steps=5)
        targets = torch.cat([p[i].sample(1, generator=seeded(i))[0] for i in range(400)])
        each = p.coverage_by_output(targets, 0.8)
        assert each.shape == (5,)
        assert each.mean().item() == pytest.approx(p.coverage(targets, 0.8))
        low, high = p.interval(0.8)
        assert each[2].item() == pytest.approx(
            ((low <= targets) & (targets <= high))[:, 2].double().mean().item()
        )
        bound = 4 * math.sqrt(0.16 / 400)
        assert ((each - 0.8).abs() < bound).all()
        joint = p.coverage(targets, 0.8, joint=True, generator=seeded())
        assert abs(joint - 0.8) < bound
        low, high = p.interval(0.8, joint=True, generator=seeded())
        inside = ((low <= targets) & (targets <= high)).all(-1)
        assert joint == pytest.approx(inside.double().mean().item())

    def test_one_output(self):
        p = RegressionPredictive(torch.zeros(1, 4), torch.ones(1, 4))
        targets = torch.tensor([0.0, 0.5, 3.0, 4.0])
        assert p.coverage(targets) == p.coverage(targets, joint=True) == 0.5
        assert p.coverage_by_output(targets).item() == 0.5
