"""Where updates are not deferred, tacit.SGD is torch's SGD."""

import copy

import pytest
import torch
from torch import nn

import tacit
from tacit.training.optim import eligibility
from training.optim.optimizer_pair import LR, make_model, train


def test_ineligible_layers_are_not_deferred(monkeypatch):
    net = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3))
    low, normal = {"0": tacit.LowRank(3)}, tacit.noise.Gaussian()
    for where, draws, noise in [
        ({"0": tacit.Diagonal()}, 1, normal),
        (low, 4, normal),
        (low, 1, tacit.noise.StudentT(5)),
    ]:
        model = tacit.variational(copy.deepcopy(net), where, draws=draws, noise=noise)
        optimizer = tacit.SGD(model, LR, deferred=True)
        model(torch.ones(4, 5)).sum().backward()
        assert not optimizer.within_block
    for threshold in ("SMALL", "WIDE"):
        monkeypatch.setattr(eligibility, threshold, 1000)
        model = make_model()
        optimizer = tacit.SGD(model, LR, deferred=True)
        model(torch.ones(4, 5)).sum().backward()
        assert not optimizer.within_block
        monkeypatch.setattr(eligibility, threshold, 0)


def test_factors_with_hooks_are_not_deferred():
    model = make_model()
    seen = []
    for factor in model.factors.parameters():
        factor.register_hook(seen.append)
    optimizer = tacit.SGD(model, LR, deferred=True)
    model(torch.ones(4, 5)).square().mean().backward()
    assert len(seen) == 4
    assert not optimizer.within_block


def test_frozen_means_and_factors_stay_unchanged():
    for frozen in ("module.0.weight", "factors.0.weight"):
        model = make_model()
        model.get_parameter(frozen).requires_grad_(False)
        optimizer = tacit.SGD(model, LR, deferred=True)
        before = copy.deepcopy(model.state_dict())
        train(model, optimizer, 3)
        after = model.state_dict()
        assert [n for n in after if torch.equal(before[n], after[n])] == [frozen]


def test_factors_with_another_dtype_than_their_momentum_are_not_deferred():
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True, momentum=0.9)
    train(model, optimizer, 3)
    model.float()
    optimizer.zero_grad()
    model(torch.ones(4, 5, dtype=torch.float32)).square().mean().backward()
    optimizer.step()
    assert not optimizer.within_block


def test_autocast_to_float16_is_not_deferred():
    torch.set_default_dtype(torch.float32)
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True)
    with torch.autocast("cpu", torch.float16):
        model(torch.ones(4, 5)).float().square().mean().backward()
    assert not optimizer.within_block
    assert all(factor.grad is not None for factor in model.factors.parameters())


def test_compiled_and_transformed_models_are_not_deferred():
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True)
    x = torch.ones(4, 5)
    torch.compile(model, fullgraph=True, backend="eager")(x).square().mean().backward()
    assert all(factor.grad is not None for factor in model.factors.parameters())
    optimizer.step()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,)).square().mean()

    found = torch.func.grad(loss)(parameters)
    assert all(found[name].abs().sum() > 0 for name in found)


def test_a_plain_network_raises_an_error():
    with pytest.raises(TypeError, match="SGD: expected a variational model, received Linear"):
        tacit.SGD(nn.Linear(2, 2), LR)
