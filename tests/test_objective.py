import pytest
import torch
from torch import nn

import tacit
from tacit.divergence import kl, squared_wasserstein

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
def test_elbo_divides_kl_by_the_size_of_the_data(model, N):
    prior, loss = moved(model)
    expected = loss + kl(model, prior)[""] / N
    assert tacit.ELBO(prior)(loss, model, data_size=N).item() == pytest.approx(expected.item())
    weighted = tacit.ELBO(prior, weight=0.25)(loss, model, data_size=N)
    assert weighted.item() == pytest.approx((loss + 0.25 * kl(model, prior)[""]).item())


@pytest.mark.parametrize("N", [1, 50])
def test_gvi_divides_its_strength_by_the_size_of_the_data(model, N):
    prior, loss = moved(model)
    expected = loss + 3.0 / N * squared_wasserstein(model, prior)[""]
    found = tacit.GVI(prior, strength=3.0)(loss, model, data_size=N)
    assert found.item() == pytest.approx(expected.item())


def test_one_switch_in_a_loop(model):
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
        (lambda prior: tacit.ELBO(prior, weight="N"), r"ELBO\(weight\): expected a number above"),
        (lambda prior: tacit.GVI(prior, strength=0), r"GVI\(strength\): expected a number above"),
    ],
)
def test_bad_settings(model, make, match):
    with pytest.raises((ValueError, TypeError), match=match):
        make(model.prior())


def test_bad_data_size(model):
    for objective in (tacit.ELBO(model.prior()), tacit.GVI(model.prior(), strength=1.0)):
        with pytest.raises(ValueError, match="data_size: expected an integer of at least 1"):
            objective(model(X).mean(), model, data_size=0)
