"""Files of models with adapters hold what is trained, and tell the pretrained network apart."""

import copy
import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

import tacit
from nets import generator, mlp
from tacit.weights.adapter import adapted_layers

X = torch.randn(6, 4, generator=generator())


def pretrained(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(mlp(4, 8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def trained():
    model = tacit.variational(
        pretrained(), tacit.adapters(2), likelihood=tacit.Categorical(["a", "b", "c"])
    )
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    tacit.fit(model, (X, y), epochs=3, lr=0.1, progress=False)
    return model.eval()


def test_a_file_holds_what_is_trained_and_buffers(tmp_path):
    model = trained()
    path = tacit.save(model, tmp_path / "model.safetensors")
    with safe_open(path, "pt") as file:
        held = {name for name in file.keys() if name.startswith("module.")}  # noqa: SIM118
    expected = {n for n, value in model.named_parameters() if value.requires_grad}
    expected = {n for n in expected if n.startswith("module.")}
    assert held == expected | {
        f"module.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_a_loaded_model_samples_the_same_and_trains_on(tmp_path):
    model = trained()
    path = tacit.save(model, tmp_path / "model.safetensors")
    loaded = tacit.load(path, pretrained())
    one, other = (m(X, samples=4, generator=generator()) for m in (model, loaded))
    assert torch.equal(one, other)
    for name, value in loaded.named_parameters():
        assert value.requires_grad == dict(model.named_parameters())[name].requires_grad
    assert loaded.layers == model.layers
    assert_close(tacit.deterministic(loaded)(X), model(X))


def test_other_pretrained_weights_are_noticed(tmp_path):
    path = tacit.save(trained(), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="adapters of a Sequential with other frozen weights"):
        tacit.load(path, pretrained(seed=1))
    with pytest.raises(ValueError, match="in the same precision"):
        tacit.load(path, pretrained().double())
    with pytest.raises(ValueError, match="doesn't fit the network passed"):
        tacit.load(path, mlp(4, 8, 3))
    with pytest.raises(ValueError, match="the module has adapters already"):
        tacit.load(path, trained().module)


def test_the_network_is_needed(tmp_path):
    net = tacit.models.MLP(4, [8], 3)
    path = tacit.save(tacit.variational(net, tacit.adapters(2)), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"holds adapters; expected the pretrained network, tacit"):
        tacit.load(path)


def test_headers_are_checked(tmp_path):
    path = tacit.save(trained(), tmp_path / "model.safetensors")
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["tacit_model"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def damaged(**changes):
        other = copy.deepcopy(header)
        other["adapters"].update(changes)
        found = tmp_path / "damaged.safetensors"
        save_file(tensors, found, {"tacit_model": json.dumps(other)})
        return found

    for changes, message in (
        ({"rank": 0}, "an integer"),
        ({"rank": 3}, "missing|is .* in the model"),
        ({"rank": 10**9}, "a rank of at most 4"),
        ({"layers": ["0.0", "nowhere"]}, "a linear layer 'nowhere', found none of that name"),
        ({"layers": ["1"]}, "a linear layer '1', found a BatchNorm1d"),
        ({"layers": "0.0"}, "a list"),
        ({"parameters": []}, "in the model and"),
        ({"more": 1}, "no entries except"),
    ):
        with pytest.raises(ValueError, match=message):
            tacit.load(damaged(**changes), pretrained())
    shutil.rmtree(tmp_path)


def test_predictors_of_methods_are_saved_whole(tmp_path):
    method = tacit.methods.ImplicitBiasVI(tacit.adapters(2), calibrated=False)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    predictor = method.fit(pretrained, (X, y), epochs=1, lr=0.1, progress=False)
    path = tacit.methods.save(predictor, tmp_path / "predictor.safetensors")
    loaded = tacit.methods.load(path, pretrained)
    assert len(dict(adapted_layers(loaded))) == 2
    one, other = (tacit.predict(p, X, generator=generator()).probs for p in (predictor, loaded))
    assert torch.equal(one, other)
