"""deterministic() and ensemble(): plain modules from a variational model."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from nets import Branching, Structured, Tied, cnn, mlp
from tacit import LowRank

X = torch.linspace(-1, 1, 24).reshape(6, 4)


def test_deterministic_returns_a_plain_copy_with_the_mean_weights():
    model = tacit.variational(mlp(4, 8, 3))
    plain = tacit.deterministic(model)
    assert type(plain) is nn.Sequential
    assert plain is not model.module
    assert torch.equal(plain(X), model.module(X))
    assert set(plain.state_dict()) == set(model.module.state_dict())


def test_converting_to_variational_and_back_keeps_the_network():
    net = mlp(4, 8, 3)
    before = copy.deepcopy(net.state_dict())
    after = tacit.deterministic(tacit.variational(net)).state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (mlp(4, 8, 3), X),
        (Tied(), torch.arange(5)),
        (Branching(), X[:, :3]),
        (cnn(nn.BatchNorm2d), torch.randn(3, 1, 8, 8)),
    ],
    ids=["mlp", "tied", "branching", "batch norm"],
)
def test_an_ensemble_returns_the_outputs_of_the_sampled_weights(net, x):
    model = tacit.variational(net, {"*": LowRank(2)}).eval()
    networks = tacit.ensemble(model, 5, generator=torch.Generator().manual_seed(0))
    expected = model(x, samples=5, generator=torch.Generator().manual_seed(0))
    assert_close(networks(x), expected)
    assert torch.equal(networks(x), networks(x))
    assert networks.training == networks.module.training == model.training
    assert not any(parameter.requires_grad for parameter in networks.parameters())


def test_an_ensemble_stores_copies_of_random_parameters_only():
    model = tacit.variational(mlp(4, 8, 3), {"3": LowRank(2)})
    networks = tacit.ensemble(model, 7)
    assert {name: tuple(t.shape) for name, t in networks.weights.named_buffers()} == {
        "3.weight": (7, 3, 8),
        "3.bias": (7, 3),
    }


def test_an_ensemble_survives_state_dict_deepcopy_and_pickle():
    model = tacit.variational(mlp(4, 8, 3))
    networks, other = tacit.ensemble(model, 4), tacit.ensemble(model, 4)
    other.load_state_dict(networks.state_dict())
    for same in (other, copy.deepcopy(networks), pickle.loads(pickle.dumps(networks))):
        assert torch.equal(same(X), networks(X))


def test_an_ensemble_keeps_structured_outputs():
    networks = tacit.ensemble(tacit.variational(Structured()), 4)
    assert networks({"x": X[:, :3]}).logits.shape == (4, 6, 2)


@pytest.mark.parametrize("function", [tacit.deterministic, tacit.ensemble])
def test_plain_modules_are_refused(function):
    with pytest.raises(TypeError, match="expected a model made by tacit.variational"):
        function(nn.Linear(2, 2))


def test_an_ensemble_of_zero_samples_is_refused():
    with pytest.raises(ValueError, match="samples: expected an integer of at least 1"):
        tacit.ensemble(tacit.variational(mlp(4, 3)), 0)


@pytest.mark.parametrize("convert", [tacit.deterministic, lambda m: tacit.ensemble(m, 5)])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: mlp(4, 8, 3), (4,)),
        (lambda: cnn(nn.BatchNorm2d), (1, 8, 8)),
        (lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)), (5, 8)),
    ],
    ids=["mlp", "cnn", "transformer"],
)
@pytest.mark.filterwarnings("ignore:`isinstance(treespec, LeafSpec)`:FutureWarning")
@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch 2.9
def test_converted_models_can_be_exported_saved_and_loaded(convert, make, shape):
    """The exported program doesn't need tacit, and takes any batch size."""
    network = convert(tacit.variational(make()).eval())
    x = torch.randn(6, *shape)
    batch = {0: torch.export.Dim("batch", min=2, max=1000)}
    # Not strict is the default of newer torch versions.
    program = torch.export.export(network, (x,), dynamic_shapes=(batch,), strict=False)
    stream = io.BytesIO()
    torch.export.save(program, stream)
    stream.seek(0)
    loaded = torch.export.load(stream).module()
    for inputs in (x, torch.randn(11, *shape)):
        assert_close(loaded(inputs), network(inputs), atol=1e-5, rtol=1e-4)
