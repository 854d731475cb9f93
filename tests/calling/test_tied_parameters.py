"""Tied parameters and shared layers: sampled once, replaced wherever they are used."""

import copy

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

import tacit
from nets import Tied
from tacit import LowRank

X = torch.linspace(-1, 1, 24).reshape(6, 4)


def test_a_tied_parameter_is_replaced_in_both_layers():
    model = tacit.variational(Tied(), {"head": LowRank(2)})
    words = torch.arange(5)
    weights = model.sample()
    assert list(weights) == ["head.weight", "head.bias"]
    reference = copy.deepcopy(model.module)
    with torch.no_grad():
        reference.embedding.weight.copy_(weights["head.weight"])
        reference.head.bias.copy_(weights["head.bias"])
    assert_close(model(words, weights=weights), reference(words))
    assert len(list(model.parameters())) == len(list(model.module.parameters())) + 2


def test_a_layer_with_two_names_keeps_its_parameters():
    shared = nn.Linear(4, 4)
    for name in ("0", "2"):
        model = tacit.variational(nn.Sequential(shared, nn.Tanh(), shared), {name: LowRank(2)})
        mean = shared.weight
        optimizer = torch.optim.SGD(model.param_groups(lr=0.1))
        for kwargs in ({}, {"samples": 3}, {"draws": 2}, {}):
            optimizer.zero_grad()
            model(X, **kwargs).sum().backward()
            optimizer.step()
            assert shared.weight is mean
        weights = model.sample()
        by_hand = copy.deepcopy(shared)
        with torch.no_grad():
            by_hand.weight.copy_(weights[f"{name}.weight"])
            by_hand.bias.copy_(weights[f"{name}.bias"])
        assert_close(model(X, weights=weights), by_hand(by_hand(X).tanh()))


def test_parameters_and_layers_may_be_shared_at_once():
    shared, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.weight = shared.weight
    model = tacit.variational(nn.Sequential(shared, other, shared), {"*": LowRank(2)})
    means = list(model.module.parameters())
    weights = model.sample()
    assert set(weights) == {"0.weight", "0.bias", "1.bias"}
    model(X, weights=weights)
    assert all(a is b for a, b in zip(means, model.module.parameters(), strict=True))
    W, a, b = weights["0.weight"], weights["0.bias"], weights["1.bias"]
    expected = ((X @ W.T + a) @ W.T + b) @ W.T + a
    assert_close(model(X, weights=weights), expected)


def test_states_hold_tied_parameters_as_tensors_of_their_own_and_load_into_tied_ones(tmp_path):
    model = tacit.variational(Tied(), {"head": LowRank(2)})
    state = model.state_dict()
    save_file(state, tmp_path / "state.safetensors")  # refuses tensors that share memory
    names = ("module.embedding.weight", "module.head.weight")
    assert torch.equal(*(state[name] for name in names))
    other = tacit.variational(Tied(), {"head": LowRank(2)})
    other.load_state_dict(load_file(tmp_path / "state.safetensors"))
    assert other.module.head.weight is other.module.embedding.weight
    assert torch.equal(other.module.head.weight, model.module.head.weight)
    kept = model.state_dict(keep_vars=True)
    assert kept[names[0]] is kept[names[1]]
