"""The state of a model: its state dict, copies, dtype and device, and its description."""

import copy
import pickle

import pytest
import torch
from torch import nn

import tacit
from nets import generator, mlp
from tacit import LowRank

X = torch.linspace(-1, 1, 24).reshape(6, 4)


@pytest.fixture
def model():
    return tacit.variational(mlp(4, 8, 3), {"0": LowRank(3), "3": LowRank(2)})


def test_state_dict_keys_start_with_module_or_factors():
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 3)), nn.BatchNorm1d(3))
    model = tacit.variational(net, tacit.every_layer)
    keys = set(model.state_dict())
    assert {key for key in keys if key.startswith("factors.")} == {
        "factors.0.0.weight",
        "factors.0.0.bias",
    }
    rest = {key for key in keys if not key.startswith("factors.")}
    assert rest == {f"module.{key}" for key in model.module.state_dict()}


def test_a_plain_checkpoint_loads_into_the_wrapped_module(model):
    plain = mlp(4, 8, 3)
    model.module.load_state_dict(plain.state_dict())
    assert torch.equal(model.eval()(X), plain(X))


def test_deepcopy_and_pickle_keep_the_distribution(model):
    expected = model(X, samples=2, generator=generator())
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(same(X, samples=2, generator=generator()), expected)
        assert same.module is not model.module


def test_factors_follow_the_model_to_another_dtype_and_device(model):
    model.double()
    assert model(X.double(), samples=2).dtype == torch.float64
    assert {p.device.type for p in model.to("meta").parameters()} == {"meta"}


def test_the_description_lists_parameter_counts_and_random_layers(model):
    assert model.parameter_counts() == {"module": 67, "factors": 174, "total": 241}
    assert repr(model).splitlines() == [
        "Variational(Sequential): 67 parameters + 174 in covariance factors",
        "  0  LowRank(rank=3, scale=1.0)  over weight 8x4, bias 8",
        "  3  LowRank(rank=2, scale=1.0)  over weight 3x8, bias 3",
    ]


def test_the_description_lists_the_tensors_that_have_noise():
    where = {"0": tacit.Kronecker(2, 2), "3": tacit.Relative()}
    lines = repr(tacit.variational(mlp(4, 8, 3), where)).splitlines()
    assert lines[1].endswith("over weight 8x4, bias 8")
    assert lines[2].endswith("over weight 3x8")
