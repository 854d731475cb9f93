"""model.param_groups(): every parameter once, with its learning rate."""

import copy

import pytest
import torch
from torch import nn

import tacit
from nets import mlp
from tacit import Diagonal, Kronecker, LowRank, LowRankPlusDiagonal

X = torch.linspace(-1, 1, 24).reshape(6, 4)


@pytest.fixture
def model():
    return tacit.variational(mlp(4, 8, 3), {"0": LowRank(3), "3": LowRank(2)})


def test_every_parameter_is_in_one_group_with_a_learning_rate_scaled_by_rank():
    net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    where = {
        "1": LowRank(4),
        "3": Kronecker(2, 1),
        "2": Diagonal(),
        "0": LowRankPlusDiagonal(4),
    }
    model = tacit.variational(net, where)
    groups = model.param_groups(lr=0.1)
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(ids) == sorted(map(id, model.parameters()))
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    factors = model.factors
    expected = {
        net[2].weight: 0.1,
        factors.get_submodule("1").weight: 0.1 / 4,
        factors.get_submodule("1").bias: 0.1 / 4,
        factors.get_submodule("2").weight: 0.1,
        factors.get_submodule("3").weight_input: 0.1 / (2 * 2),
        factors.get_submodule("3").weight_output: 0.1 * 2 / (7 / 6),
        factors.get_submodule("0").weight: 0.1 / 4,
        factors.get_submodule("0").weight_diagonal: 0.1,
    }
    for parameter, rate in expected.items():
        assert rates[id(parameter)] == pytest.approx(rate)


def test_groups_work_with_torch_optimizers_and_schedulers(model):
    optimizer = torch.optim.SGD(model.param_groups(lr=0.1), momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    before = copy.deepcopy(model.state_dict())
    model(X).square().mean().backward()
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(
        [0.05, 0.05 / 3, 0.05 / 2]
    )
    assert all(not torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_parameter_in_no_group_is_an_error(model):
    model.extra = nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match="param_groups: in no group: extra"):
        model.param_groups(lr=0.1)


@pytest.mark.parametrize("lr", [0, -0.1, float("nan")])
def test_learning_rates_must_be_positive(model, lr):
    with pytest.raises(ValueError, match="lr: expected a number above 0"):
        model.param_groups(lr=lr)
