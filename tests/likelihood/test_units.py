"""Units and noise scales of the likelihoods of real targets."""

import math

import pytest
import scipy.stats
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.distributions import Normal
from torch.testing import assert_close

import tacit
from tacit import Gaussian, HeteroscedasticGaussian, HeteroscedasticStudentT
from tacit.likelihood.continuous import PRIOR, best_scale, covering_scale
from tacit.likelihood.predictive.noise_shapes import StudentT

F64 = torch.float64


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def with_units(likelihood, location, unit, **settings):
    likelihood = likelihood.double()
    location, unit = (torch.tensor(value, dtype=F64) for value in (location, unit))
    likelihood.set_units(location, unit, **settings)
    return likelihood


class TestUnits:
    def test_loss_is_the_negative_log_density_in_units_of_the_targets(self):
        likelihood = with_units(Gaussian(), [5.0, -2.0], [3.0, 0.5])
        with torch.no_grad():
            likelihood.log_scale.copy_(torch.tensor([-1.0, 0.3]))
        outputs, y = randn(4, 7, 2), randn(7, 2, seed=1) * 3 + 5
        mean = outputs * likelihood.unit + likelihood.location
        expected = -Normal(mean, likelihood.scale.detach()).log_prob(y).mean()
        assert_close(likelihood.loss(outputs, y).detach(), expected)

    @pytest.mark.parametrize("kind", [Gaussian, HeteroscedasticStudentT])
    def test_integer_targets_are_numbers(self, kind):
        likelihood = with_units(kind(), 0.9, 0.4)
        outputs, y = randn(7, 2 if kind is HeteroscedasticStudentT else 1), torch.arange(7) % 3
        for loss in (likelihood.loss, likelihood.training_loss):
            assert_close(loss(outputs, y), loss(outputs, y.double()))

    def test_heteroscedastic_loss_is_in_units_of_the_targets(self):
        likelihood = with_units(HeteroscedasticGaussian(), 5.0, 3.0)
        outputs, y = randn(7, 2), randn(7, 1, seed=1) * 3 + 5
        scale = torch.nn.functional.softplus(outputs[:, 1:]) + 1e-4
        expected = -Normal(outputs[:, :1] * 3 + 5, scale * 3).log_prob(y).mean()
        assert_close(likelihood.loss(outputs, y), expected)

    def test_predictions_are_in_units_of_the_targets(self):
        likelihood = with_units(Gaussian(), [5.0, -2.0], [3.0, 0.5])
        found = likelihood.predictive(torch.zeros(4, 3, 2, dtype=F64))
        assert_close(found.mean, torch.tensor([[5.0, -2.0]] * 3, dtype=F64))
        assert_close(found.std.detach(), torch.tensor([[3.0, 0.5]] * 3, dtype=F64))

    def test_flat_targets_give_flat_predictions(self):
        likelihood = with_units(Gaussian(), 5.0, 3.0, flat=True)
        assert likelihood.predictive(torch.zeros(4, 3, 1, dtype=F64)).mean.shape == (3,)
        assert likelihood.predictive(torch.zeros(4, 3, dtype=F64)).mean.shape == (3,)

    def test_a_fixed_scale_keeps_its_value_in_units_of_the_targets(self):
        likelihood = with_units(Gaussian(0.7, learn=False), [5.0, -2.0], [3.0, 0.5])
        assert_close(likelihood.scale.detach(), torch.tensor([0.7, 0.7], dtype=F64))

    def test_scales_of_several_outputs(self):
        assert_close(Gaussian([0.5, 2.0]).scale.detach(), torch.tensor([0.5, 2.0]))
        with pytest.raises(ValueError, match=r"Gaussian\(scale\): expected a number above 0"):
            Gaussian([0.5, 0.0])

    def test_another_number_of_outputs_is_refused(self):
        likelihood = with_units(Gaussian(), [5.0, -2.0], [3.0, 0.5])
        with pytest.raises(
            ValueError, match=r"expected outputs of shape \(2,\) for each example, as the training"
        ):
            likelihood.predictive(torch.zeros(4, 3, 1))

    @pytest.mark.parametrize(
        ("location", "unit", "match"),
        [
            (0.0, 0.0, "expected units above 0"),
            (math.nan, 1.0, "expected finite numbers"),
            ([0.0, 1.0], 1.0, "of the same shape"),
        ],
    )
    def test_bad_units_are_refused(self, location, unit, match):
        with pytest.raises(ValueError, match=match):
            with_units(Gaussian(), location, unit)

    def test_a_state_brings_its_shapes(self):
        trained = with_units(Gaussian(), [5.0, -2.0], [3.0, 0.5])
        fresh = Gaussian().double()
        fresh.load_state_dict(trained.state_dict())
        assert_close(fresh.scale.detach(), trained.scale.detach())


class TestTrainingLoss:
    def test_gradients_are_those_of_the_squared_error(self):
        likelihood = with_units(Gaussian(), 5.0, 3.0)
        with torch.no_grad():
            likelihood.log_scale.fill_(-3.0)
        outputs, y = randn(7, 1).requires_grad_(), randn(7, 1, seed=1)
        likelihood.training_loss(outputs, y).backward()
        assert_close(outputs.grad, (outputs.detach() - (y - 5) / 3) / 7)
        assert likelihood.log_scale.grad == 0

    @pytest.mark.parametrize("kind", [Gaussian, tacit.likelihood.Laplace])
    def test_fixed_scales_weigh_the_outputs_but_not_the_whole(self, kind):
        likelihood = with_units(kind([0.3, 2.0], learn=False), [5.0, -2.0], [3.0, 0.5])
        gradients = []
        for loss in (likelihood.loss, likelihood.training_loss):
            outputs = randn(7, 2).requires_grad_()
            loss(outputs, randn(7, 2, seed=1)).backward()
            gradients.append(outputs.grad)
        smallest = 0.3 / 3  # the smallest scale in units of the outputs
        assert_close(gradients[1], gradients[0] * smallest ** (2 if kind is Gaussian else 1))

    def test_one_fixed_scale_trains_as_one_that_is_learned(self):
        outputs, y = randn(7, 1), randn(7, 1, seed=1)
        for kind in (Gaussian, tacit.StudentT, tacit.likelihood.Laplace):
            fixed, learned = kind(0.01, learn=False).double(), kind().double()
            assert_close(fixed.training_loss(outputs, y), learned.training_loss(outputs, y))

    def test_beta_nll_weighs_gradients_by_the_scale(self):
        # Seitzer et al. (2022), eq. 5: for beta = 1/2 the gradient of a mean is error / scale, that
        # of the variance (variance - error^2) / (2 scale^3).
        outputs, y = randn(7, 2).requires_grad_(), randn(7, 1, seed=1)
        HeteroscedasticGaussian().double().training_loss(outputs, y).backward()
        mean, raw = outputs.detach().chunk(2, -1)
        scale = torch.nn.functional.softplus(raw) + 1e-4
        assert_close(outputs.grad[:, :1], (mean - y) / scale / 7)
        by_variance = (scale.square() - (y - mean).square()) / (2 * scale**3) / 7
        assert_close(outputs.grad[:, 1:], by_variance * 2 * scale * torch.sigmoid(raw))


class TestBestScale:
    def test_of_a_single_function_is_the_root_mean_squared_error(self):
        outputs, y = randn(1, 50, 2), randn(50, 2, seed=1) * 3
        found = best_scale(outputs, torch.ones_like(outputs), y)
        assert_close(found, (y - outputs[0]).square().mean(0).sqrt(), rtol=1e-5, atol=0)

    def test_maximises_the_penalised_likelihood_of_the_mixture(self):
        outputs, y = randn(8, 40, 1), randn(40, 1, seed=1)
        scales = randn(8, 40, 1, seed=2).exp()

        def objective(log_factor: float) -> float:
            factor = math.exp(log_factor)
            densities = Normal(outputs, scales * factor).log_prob(y).exp().mean(0)
            squared = ((y - outputs) / scales).square().mean()
            prior = log_factor + squared / (2 * factor**2)
            return (-densities.log().mean() + PRIOR / 40 * prior).item()

        expected = minimize_scalar(objective, bounds=(-6, 3), method="bounded")
        found = best_scale(outputs, scales, y)
        assert objective(found.log().item()) <= expected.fun + 1e-9

    def test_does_not_absorb_the_spread_of_the_functions(self):
        count, noise, spread = 4_000, 0.3, 0.5
        centre = randn(count, 1)
        functions = centre + spread * randn(100, count, 1, seed=1)
        y = centre + math.hypot(noise, spread) * randn(count, 1, seed=2)
        found = best_scale(functions, torch.ones_like(functions), y).item()
        # The variance of the targets has a standard error of (noise^2 + spread^2) sqrt(2 / count).
        error = (noise**2 + spread**2) * math.sqrt(2 / count) / (2 * noise)
        assert abs(found - noise) < 4 * error + 0.02  # 100 functions

    def test_sets_one_scale_for_each_output(self):
        likelihood = with_units(Gaussian(), [5.0, -2.0], [3.0, 0.5])
        y = torch.stack([5 + 3 * randn(100), -2 + 0.05 * randn(100, seed=1)], 1)
        likelihood.fit_scale(torch.zeros(1, 100, 2, dtype=F64), y)
        errors = (y - likelihood.location).square().mean(0).sqrt()
        assert_close(likelihood.scale.detach(), errors, rtol=1e-5, atol=0)

    def test_of_predicted_scales_is_a_factor(self):
        likelihood = HeteroscedasticGaussian().double()
        outputs = torch.cat([torch.zeros(1, 500, 1), randn(1, 500, 1)], -1).double()
        scale = torch.nn.functional.softplus(outputs[0, :, 1:]) + 1e-4
        y = 3 * scale * (2 * torch.rand(500, 1, dtype=F64) - 1)  # without tails
        likelihood.fit_scale(outputs, y)
        assert_close(likelihood.factor, (y / scale).square().mean().sqrt(), rtol=1e-5, atol=0)
        assert_close(likelihood.predictive(outputs).std, scale * likelihood.factor)

    def test_intervals_contain_their_share_where_the_likelihood_would_leave_targets_out(self):
        likelihood = HeteroscedasticStudentT().double()
        outputs = torch.zeros(1, 200, 2, dtype=F64)
        y = randn(200, 1)
        y[:30] *= 20  # 15 % of the targets are far away
        likelihood.fit_scale(outputs, y)
        assert likelihood.predictive(outputs).coverage(y, 0.9) < 0.88
        likelihood.ensure_coverage(outputs, y)
        assert likelihood.predictive(outputs).coverage(y, 0.9) == round(0.9 * 201) / 200
        likelihood.factor.mul_(2)
        likelihood.ensure_coverage(outputs, y)  # wide enough: it stays
        assert likelihood.predictive(outputs).coverage(y, 0.9) > 0.91

    def test_covering_scale_is_the_least_one(self):
        means, scales, y = randn(4, 60, 2), randn(4, 60, 2, seed=1).exp(), randn(60, 2, seed=2)
        found = covering_scale(means, scales, y, StudentT(4))

        def inside(factor: torch.Tensor) -> torch.Tensor:
            z = torch.from_numpy(scipy.stats.t(4).cdf(((y - means) / (scales * factor)).numpy()))
            return ((z.mean(0) - 0.5).abs() <= 0.45).sum(0)

        assert inside(found * (1 + 1e-6)).tolist() == [55, 55]  # nearest to 0.9 * 61
        assert (inside(found * (1 - 1e-6)) < 55).all()

    def test_covering_scale_of_few_targets_contains_all(self):
        found = covering_scale(torch.zeros(1, 3, 1), torch.ones(1, 3, 1), randn(3, 1))
        assert_close(found, randn(3, 1).abs().amax(0) / 1.6448536269514722, rtol=1e-6, atol=0)

    def test_a_fixed_scale_stays(self):
        likelihood = Gaussian(0.7, learn=False).double()
        likelihood.fit_scale(randn(3, 10, 1), randn(10, 1))
        assert_close(likelihood.scale.item(), 0.7, rtol=1e-6, atol=0)

    def test_targets_that_are_met_exactly_keep_the_scale_positive(self):
        found = best_scale(*(torch.zeros(2, 10, 1), torch.ones(2, 10, 1)), torch.zeros(10, 1))
        assert 0 < found.item() < 1e-3
