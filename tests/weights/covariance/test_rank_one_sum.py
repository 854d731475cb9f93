import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from nets import generator, mlp
from tacit import Kronecker, LowRank, RankOneSum, theory
from tacit.calling.moments import output_moments
from tacit.testing import CovarianceSuite
from tacit.testing.covariance import LAYERS, make_factors
from tacit.theory import Normal
from tacit.weights.covariance import parameter_count
from tacit.weights.divergence import kl, squared_wasserstein


class TestRankOneSum(CovarianceSuite):
    def covariances(self, shapes):
        P = parameter_count(shapes)
        return [RankOneSum(1), RankOneSum(min(3, P)), RankOneSum(P)]

    def reference(self, covariance, factors, shapes):
        """Cov[W_ij, W_kl] is the sum over r of b_ir a_jr b_kr a_lr, term by term."""
        B = factors[f"{next(iter(shapes))}_output"]
        Sigma = 0.0
        for r in range(covariance.rank):
            direction = [
                torch.outer(B[r], factors[f"{name}_input"][r].reshape(-1)).flatten()
                for name in shapes
            ]
            Sigma = Sigma + torch.outer(torch.cat(direction), torch.cat(direction))
        return Sigma


def test_the_directions_are_those_of_a_low_rank_covariance():
    shapes = LAYERS["linear"]
    B, A = torch.randn(2, 3).double(), torch.randn(2, 6).double()
    own = {"weight_input": A[:, :5], "bias_input": A[:, 5], "weight_output": B}
    low = {"weight": B[:, :, None] * A[:, None, :5], "bias": B * A[:, 5:]}
    z = torch.randn(4, 2, dtype=torch.float64)
    ours = RankOneSum(2).apply(own, z, shapes)
    theirs = LowRank(2).apply(low, z, shapes)
    for name in shapes:
        assert_close(ours[name], theirs[name])


def test_it_is_a_kronecker_covariance_with_diagonal_noise():
    model = tacit.variational(nn.Conv2d(2, 3, 2).double(), {"": RankOneSum(4)})
    factors, shapes = dict(model.factors.named_parameters()), model.layers[0].shapes
    z = torch.randn(4, dtype=torch.float64)
    ours = RankOneSum(4).apply(factors, z, shapes)
    theirs = Kronecker(4, 4).apply(factors, z.diag().flatten(), shapes)
    for name in shapes:
        assert_close(ours[name], theirs[name])


def test_the_factors_have_one_number_per_input_and_output_of_each_term():
    model = tacit.variational(nn.Linear(100, 50), {"": RankOneSum(8)})
    assert model.parameter_counts()["factors"] == 8 * (100 + 1 + 50)


def test_divergences_agree_with_the_references_in_theory():
    model = tacit.variational(nn.Linear(2, 3).double(), {"": RankOneSum(9)})
    prior = model.prior()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    q, p = (
        Normal(d.dense_mean(), d.dense_factor())
        for d in (model.distributions[""], prior.distributions[""])
    )
    assert squared_wasserstein(model, prior)[""].item() == pytest.approx(
        theory.squared_wasserstein(q, p), rel=1e-6
    )
    assert kl(model, prior)[""].item() == pytest.approx(theory.kl(q, p), rel=1e-6)


def test_the_kl_divergence_of_fewer_terms_than_parameters_is_refused():
    model = tacit.variational(nn.Linear(2, 3), {"": RankOneSum(4)})
    with pytest.raises(ValueError, match=r"KL: infinite, because the covariance of RankOneSum\("):
        kl(model, model.prior())


def test_output_moments_are_those_of_samples():
    model = tacit.variational(mlp(4, 6, 3).double(), {"3": RankOneSum(5)}).eval()
    x = torch.randn(5, 4, dtype=torch.float64)
    mean, variance = output_moments(model, x)
    samples = model(x, samples=20_000, generator=generator())
    error = samples.std(0) / 20_000**0.5
    assert ((samples.mean(0) - mean).abs() <= 5 * error).all()
    squares = (samples - mean).square()
    assert ((squares.mean(0) - variance).abs() <= 5 * squares.std(0) / 20_000**0.5).all()


def test_a_step_changes_the_weights_as_much_as_one_of_the_mean():
    # In the directions of the noise: with G along b_1 a_1^T, whatever the rank and the width.
    for rank, width in ((1, 64), (4, 64), (4, 256)):
        model = tacit.variational(nn.Linear(width, width, bias=False), {"": RankOneSum(rank)})
        shapes, factors = model.layers[0].shapes, dict(model.factors.named_parameters())
        a, b = factors["weight_input"][0].detach(), factors["weight_output"][0].detach()
        G = torch.outer(b, a) / (b.norm() * a.norm())
        scales = {"weight": width**-0.5}
        rates = model.layers[0].covariance.learning_rates(shapes, scales, {"weight": 1.0}, "sgd")
        z = torch.ones(rank)
        before = RankOneSum(rank).apply(factors, z, shapes)["weight"]
        gradients = torch.autograd.grad((G * before).sum(), list(factors.values()))
        moved = {
            name: factor.detach() + 1e-4 * rates[name] * gradient
            for (name, factor), gradient in zip(factors.items(), gradients, strict=True)
        }
        change = (RankOneSum(rank).apply(moved, z, shapes)["weight"] - before) / 1e-4
        # One from each side.
        assert (G * change).sum().item() == pytest.approx(2.0, rel=0.5)


def test_describe_save_and_load(tmp_path):
    model = tacit.variational(mlp(4, 8, 3), {"*": RankOneSum(2, scale=0.5)})
    assert "factors.3.weight_output" in str(tacit.describe(model))
    tacit.save(model, tmp_path / "model")
    loaded = tacit.load(tmp_path / "model", mlp(4, 8, 3))
    assert [layer.covariance for layer in loaded.layers] == [RankOneSum(2, scale=0.5)] * 2
    assert loaded.draws == "each"
    x = torch.randn(3, 4)
    ours, theirs = (m(x, samples=3, generator=generator()) for m in (model, loaded))
    assert torch.equal(ours, theirs)


def test_under_mup_the_rank_must_grow_with_the_width():
    def model(rank):
        base = mlp(4, 32, 32, 1)
        where = {"3": RankOneSum(rank)}
        parametrization = tacit.MaximalUpdate(base=base)
        return tacit.variational(mlp(4, 256, 256, 1), where, parametrization=parametrization)

    with pytest.raises(ValueError, match=r"layer '3': under muP the noise of RankOneSum\(rank=4"):
        model(4)
    assert model(64).layers[0].covariance.rank == 64


@pytest.mark.parametrize(("width", "rank"), [(64, 8), (256, 32), (256, 4)])
def test_the_growth_of_the_spectrum_is_that_of_samples(width, rank):
    shapes = {"weight": torch.Size([width, width])}
    covariance = RankOneSum(rank)
    norms = []
    for seed in range(20):
        factors = make_factors(covariance, shapes, seed=seed, dtype=torch.float32)
        z = torch.randn(rank, generator=generator(seed))
        norms.append(torch.linalg.matrix_norm(covariance.apply(factors, z, shapes)["weight"], 2))
    expected = 0.5 * 2 * width**0.5  # of independent noise of the same size
    measured = torch.stack(norms).mean().item() / expected
    assert covariance.spectral_growth(shapes) == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize("rank", [0, 19])
def test_a_rank_out_of_range_is_refused(rank):
    with pytest.raises(ValueError, match="RankOneSum"):
        tacit.variational(nn.Linear(5, 3), {"": RankOneSum(rank)})
