import gc
import weakref

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit import theory
from tacit.theory import Normal
from tacit.weights.divergence import kl, squared_wasserstein

STRUCTURES = {
    "low rank": tacit.LowRank(3),
    "full rank": tacit.FullRank(),
    "diagonal": tacit.Diagonal(),
    "low rank plus diagonal": tacit.LowRankPlusDiagonal(2),
    "kronecker": tacit.Kronecker(2, 2),
    "full kronecker": tacit.Kronecker(5, 3),
}
FINITE = ["full rank", "diagonal", "low rank plus diagonal", "full kronecker"]


def make_model(covariance, **kwargs):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    return tacit.variational(net, {"0": covariance}, **kwargs)


def move(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)


def normal(distribution):
    return Normal(distribution.dense_mean(), distribution.dense_factor())


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_wasserstein_distance_agrees_with_the_reference_in_theory(name):
    model = make_model(STRUCTURES[name])
    prior = model.prior()
    assert squared_wasserstein(model, prior)["0"].item() == pytest.approx(0, abs=1e-10)
    move(model)
    q, p = (normal(d.distributions["0"]) for d in (model, prior))
    ours = squared_wasserstein(model, prior)["0"]
    assert ours.item() == pytest.approx(theory.squared_wasserstein(q, p), rel=1e-6)
    ours.backward()
    assert all(f.grad.isfinite().all() for f in model.factors.parameters())
    assert model.module[2].weight.grad is None


@pytest.mark.parametrize("name", FINITE)
def test_the_kl_divergence_agrees_with_the_reference_in_theory(name):
    model = make_model(STRUCTURES[name])
    prior = model.prior()
    assert kl(model, prior)["0"].item() == pytest.approx(0, abs=1e-8)
    move(model)
    q, p = (normal(d.distributions["0"]) for d in (model, prior))
    assert kl(model, prior)["0"].item() == pytest.approx(theory.kl(q, p), rel=1e-6)


@pytest.mark.parametrize("name", ["low rank", "kronecker"])
def test_an_infinite_kl_divergence_is_refused_with_the_reason(name):
    model = make_model(STRUCTURES[name])
    with pytest.raises(ValueError, match="KL: infinite, because the covariance of .* is singular"):
        kl(model, model.prior())


def test_a_standard_deviation_of_zero_is_refused():
    model = make_model(tacit.Diagonal())
    prior = model.prior()
    with torch.no_grad():
        model.factors.get_submodule("0").bias[0] = 0
    with pytest.raises(ValueError, match="a standard deviation has reached 0"):
        kl(model, prior)
    with torch.no_grad():
        model.factors.get_submodule("0").bias[0] = float("nan")
    with pytest.raises(ValueError, match="a mean or a factor of the model is not finite"):
        kl(model, prior)


@pytest.mark.parametrize("name", FINITE)
def test_a_prior_without_variance_is_refused(name):
    model = make_model(STRUCTURES[name])
    with torch.no_grad():
        for factor in model.factors.parameters():
            factor.zero_()
    prior = model.prior()
    with pytest.raises(ValueError, match="KL: infinite, or too large"):
        kl(make_model(STRUCTURES[name]), prior)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_divergences_are_computed_in_the_dtype_of_the_model(dtype):
    model = make_model(tacit.LowRankPlusDiagonal(2)).to(dtype)
    prior = model.prior()
    move(model)
    for divergence in (kl, squared_wasserstein):
        value = divergence(model, prior)["0"]
        assert value.dtype == dtype
        model.zero_grad()
        value.backward()
        gradients = [p.grad for p in model.factors.parameters()]
        assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)


def test_each_layer_has_its_own_divergence():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    model = tacit.variational(net, {"*": tacit.Diagonal()})
    prior = model.prior()
    with torch.no_grad():
        net[1].weight += 1
    parts = squared_wasserstein(model, prior)
    assert parts["0"].item() == pytest.approx(0, abs=1e-12)
    assert parts["1"].item() == pytest.approx(6)  # six weights moved by 1


class TestPrior:
    def test_a_prior_stays_frozen_while_the_model_is_trained(self):
        model = make_model(tacit.LowRank(2))
        prior = model.prior()
        before = {n: t.clone() for n, t in prior.distributions["0"].factors.items()}
        move(model)
        assert not any(t.requires_grad for t in prior.distributions["0"].mean.values())
        for name, tensor in prior.distributions["0"].factors.items():
            assert_close(tensor, before[name], rtol=0, atol=0)

    def test_its_memory_is_freed_with_the_objective(self):
        model = make_model(tacit.LowRank(2))
        objective = tacit.GVI(model.prior(), strength=1.0)
        tensor = weakref.ref(objective.prior.distributions["0"].factors["weight"])
        objective(model(torch.ones(1, 4).double()).sum(), model, data_size=1).backward()
        del objective
        gc.collect()
        assert tensor() is None

    def test_it_follows_a_model_to_another_dtype(self):
        model = make_model(tacit.LowRank(2))
        prior = model.prior()
        model.float()
        assert squared_wasserstein(model, prior)["0"].dtype == torch.float32

    def test_the_prior_of_another_model_is_refused(self):
        model = make_model(tacit.LowRank(2))
        other = tacit.variational(nn.Linear(4, 3), {"": tacit.LowRank(2)})
        with pytest.raises(
            ValueError, match=r"expected the layers \['0'\], received \[''\]; use the prior"
        ):
            kl(model, other.prior())
        with pytest.raises(ValueError, match="layer '0' differs from the model's"):
            squared_wasserstein(model, make_model(tacit.LowRank(1)).prior())
        with pytest.raises(TypeError, match=r"expected model.prior\(\), received Variational"):
            squared_wasserstein(model, model)

    def test_divergences_need_gaussian_noise(self):
        model = make_model(tacit.Diagonal(), noise=tacit.noise.Laplace())
        for divergence in (kl, squared_wasserstein):
            with pytest.raises(ValueError, match="closed form only for Gaussian noise"):
                divergence(model, model.prior())


@pytest.mark.parametrize("divergence", [kl, squared_wasserstein])
def test_a_plain_network_has_no_divergence(divergence):
    prior = tacit.variational(nn.Linear(2, 2)).prior()
    with pytest.raises(
        TypeError, match=r"expected a model made by tacit.variational, received Lin"
    ):
        divergence(nn.Linear(2, 2), prior)
