import pytest
import torch
from torch import nn

import tacit
from tacit.weights.divergence import kl, squared_wasserstein

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return tacit.variational(nn.Linear(3, 2), {"": tacit.Diagonal()})


def moved(model):
    prior = model.prior()
    with torch.no_grad():
        model.module.weight += 0.5
    return prior, model(X).square().mean()


def test_the_expected_loss_is_the_loss(model):
    loss = model(X).mean()
    assert tacit.ExpectedLoss()(loss, model, data_size=7) is loss


@pytest.mark.parametrize("N", [1, 50])
def test_elbo_divides_kl_by_the_number_of_examples(model, N):
    prior, loss = moved(model)
    expected = loss + kl(model, prior)[""] / N
    assert tacit.ELBO(prior)(loss, model, data_size=N).item() == pytest.approx(expected.item())
    weighted = tacit.ELBO(prior, weight=0.25)(loss, model, data_size=N)
    assert weighted.item() == pytest.approx((loss + 0.25 * kl(model, prior)[""]).item())


@pytest.mark.parametrize("N", [1, 50])
def test_gvi_divides_its_strength_by_the_number_of_examples(model, N):
    prior, loss = moved(model)
    expected = loss + 3.0 / N * squared_wasserstein(model, prior)[""]
    found = tacit.GVI(prior, strength=3.0)(loss, model, data_size=N)
    assert found.item() == pytest.approx(expected.item())


def test_objectives_are_interchangeable_in_a_loop(model):
    prior = model.prior()
    for objective in (tacit.ExpectedLoss(), tacit.ELBO(prior), tacit.GVI(prior, strength=1.0)):
        optimizer = torch.optim.SGD(model.param_groups(lr=0.01))
        for _ in range(3):
            loss = objective(model(X).square().mean(), model, data_size=len(X))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss.isfinite()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda prior: tacit.ELBO(prior, weight=-1.0), r"ELBO\(weight\): expected a number above"),
        (
            lambda prior: tacit.ELBO(prior, weight="N"),
            r"ELBO\(weight\): expected '1/N' or a number",
        ),
        (lambda prior: tacit.GVI(1.0, prior), r"prior: expected model.prior\(\), received float"),
        (lambda prior: tacit.GVI(prior, strength=0), r"GVI\(strength\): expected a number above"),
    ],
)
def test_bad_settings_raise_errors(model, make, match):
    with pytest.raises((ValueError, TypeError), match=match):
        make(model.prior())


def test_an_infinite_elbo_raises_an_error_on_construction():
    model = tacit.variational(nn.Linear(3, 2), {"": tacit.LowRank(2)})
    with pytest.raises(ValueError, match="KL: infinite, because the covariance of LowRank"):
        tacit.ELBO(model.prior())


def test_a_strong_penalty_keeps_the_model_close_to_the_prior():
    moved = {}
    for strength in (1e-3, 100.0):
        torch.manual_seed(0)
        model = tacit.variational(nn.Linear(3, 2), {"": tacit.LowRank(2)})
        prior = model.prior()
        objective = tacit.GVI(prior, strength=strength)
        optimizer = torch.optim.SGD(model.param_groups(lr=0.005))
        for _ in range(100):
            loss = objective(model(X).square().mean(), model, data_size=len(X))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        moved[strength] = squared_wasserstein(model, prior)[""].item()
    assert moved[100.0] < 0.1 * moved[1e-3]


def test_a_bad_data_size_raises_an_error(model):
    for objective in (tacit.ELBO(model.prior()), tacit.GVI(model.prior(), strength=1.0)):
        with pytest.raises(ValueError, match="data_size: expected an integer of at least 1"):
            objective(model(X).mean(), model, data_size=0)
