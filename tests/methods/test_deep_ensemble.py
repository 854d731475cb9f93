import signal

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.methods import DeepEnsemble, Standard

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
Y = 1 * (X[:, 0] > 0) + 1 * (X[:, 1] > 0)
SETTINGS = {"epochs": 4, "lr": 0.05, "batch_size": 20, "progress": False}


def net():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))


def test_members_differ_and_their_probabilities_are_averaged():
    predictor = DeepEnsemble(3).fit(net, (X, Y), **SETTINGS)
    functions = tacit.predict(predictor, X).logits
    assert functions.shape == (3, 60, 3)
    assert not torch.equal(functions[0], functions[1])
    assert_close(tacit.predict(predictor, X).probs, functions.softmax(-1).mean(0))


def test_the_cost_counts_the_parameters_of_all_members():
    one, three = (DeepEnsemble(n).fit(net, (X, Y), **SETTINGS).cost.parameters for n in (1, 3))
    assert three - one == 2 * sum(parameter.numel() for parameter in net().parameters())


def test_the_first_member_is_the_plain_network():
    plain = tacit.predict(Standard().fit(net, (X, Y), seed=4, **SETTINGS), X).logits[0]
    first = tacit.predict(DeepEnsemble(2).fit(net, (X, Y), seed=4, **SETTINGS), X).logits[0]
    assert torch.equal(plain, first)


def test_the_users_likelihood_is_copied():
    likelihood = tacit.Categorical(averaging="log_probs")
    predictor = DeepEnsemble(2).fit(net, (X, Y), likelihood=likelihood, **SETTINGS)
    assert likelihood.averaging == "log_probs"
    assert predictor.likelihood.averaging == "probs"


def test_a_make_net_that_returns_the_same_network_is_refused():
    only = net()
    with pytest.raises(ValueError, match="make_net: .* returned the same network twice"):
        DeepEnsemble(2).fit(lambda: only, (X, Y), **SETTINGS)


def test_an_interrupt_stops_the_training_of_all_members():
    def stop(row, model):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        DeepEnsemble(2).fit(net, (X, Y), callbacks=[stop], **SETTINGS)


def test_members_have_checkpoints_of_their_own(tmp_path):
    data = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    arguments = {"epochs": 1, "lr": 0.01, "progress": False}
    found, expected = (
        DeepEnsemble(2).fit(lambda: nn.Linear(4, 2), data, **arguments, **more)
        for more in ({"checkpoint": tmp_path}, {})
    )
    for net, other in zip(found.nets, expected.nets, strict=True):
        assert torch.equal(net.weight, other.weight)
