"""The default number of draws of tacit.fit: one if the network couples examples of a batch."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.data import DataLoader

import tacit
from tacit.training.coupling import _close
from training.fit_problem import X, Y, fit, make_model, weights


class Net(nn.Module):
    """Two layers with a function between them, which may couple examples."""

    def __init__(self, between, zero=False):
        super().__init__()
        self.first, self.last, self.between = nn.Linear(4, 8), nn.Linear(8, 2), between
        self.register_buffer("seen", torch.zeros(()))
        if zero:
            nn.init.zeros_(self.last.weight)

    def forward(self, x):
        self.seen += 1
        return self.last(self.between(self, self.first(x)))


def model_of(between, **settings):
    torch.manual_seed(0)
    return tacit.variational(
        Net(between, **settings), ["last"], rank=2, likelihood=tacit.Categorical()
    )


COUPLED = {
    "mean": lambda net, h: h - h.mean(0),
    "in train mode": lambda net, h: h - h.mean(0) if net.training else h,
    "neighbour": lambda net, h: h + h.roll(1, 0),
    "earlier": lambda net, h: h.cumsum(0),
    "dropout": lambda net, h: F.dropout(h - h.mean(0), 0.1, net.training),
    "dropout in train mode": lambda net, h: (
        F.dropout(h - h.mean(0), 0.1, True) if net.training else h
    ),
}
INDEPENDENT = {
    "relu": lambda net, h: h.relu(),
    "layer norm": lambda net, h: F.layer_norm(h, (8,)),
    "dropout": lambda net, h: F.dropout(h, 0.1, net.training),
}


def test_masked_logits_are_compared_up_to_rounding():
    whole = torch.tensor([[1.0, -torch.inf], [2.0, -torch.inf]])
    assert _close(whole, whole * (1 + 1e-6), whole)
    assert not _close(whole, whole * 1.1, whole)
    assert not _close(whole, whole.nan_to_num(neginf=0), whole)


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("kind", COUPLED)
def test_a_network_that_couples_examples_gets_one_draw_and_a_warning(kind, zero):
    model, one = model_of(COUPLED[kind], zero=zero), model_of(COUPLED[kind], zero=zero)
    with pytest.warns(UserWarning, match="one draw .* instead of 8, because the outputs for some"):
        found = fit(model, epochs=1, batch_size=8)
    expected = fit(one, epochs=1, batch_size=8, draws=1)
    assert found["loss"] == expected["loss"]
    assert_close(weights(model), weights(one), rtol=0, atol=0)
    assert model.draws == 1
    assert_close(model.module.seen, one.module.seen, rtol=0, atol=0)  # the trial leaves no trace


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "64-true"])
@pytest.mark.parametrize("kind", INDEPENDENT)
def test_other_networks_get_eight_draws(kind, precision):
    model, eight = model_of(INDEPENDENT[kind]), model_of(INDEPENDENT[kind])
    fit(model, epochs=1, precision=precision)
    fit(eight, epochs=1, precision=precision, draws=8)
    assert torch.equal(weights(model), weights(eight))


def test_draws_asked_for_are_not_questioned():
    """No warning, which would be an error here, and other weights than with one draw."""
    one, four, two = (model_of(COUPLED["mean"]) for _ in range(3))
    fit(one, epochs=1, draws=1)
    fit(four, epochs=1, draws=4)
    fit(two, epochs=1, samples=2)
    assert not torch.equal(weights(four), weights(one))
    assert not torch.equal(weights(two), weights(one))


def test_layers_in_eval_mode_and_dropout_modes_are_restored():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Dropout(0.5), nn.Linear(8, 2))
    model = tacit.variational(net, ["3"], rank=2, likelihood=tacit.Categorical())
    net[1].eval()
    fit(model, epochs=1)
    assert [layer.training for layer in net] == [True, False, True, True]


class Graph(nn.Module):
    """A graph network: each node averages its neighbours."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x, edges):
        return edges @ self.fc(x)


def test_a_graph_network_trains_on_the_whole_graph_in_its_own_order():
    torch.manual_seed(0)
    edges = torch.rand(96, 96).softmax(-1)
    model, loop = (
        tacit.variational(
            Graph(), rank=2, likelihood=tacit.Categorical(), generator=torch.Generator()
        )
        for _ in range(2)
    )
    loop.load_state_dict(model.state_dict())
    with pytest.warns(UserWarning, match="because the network can't be applied to a part of"):
        fit(model, ((X, edges), Y), epochs=3, batch_size=96)
    optimizer = torch.optim.SGD(loop.param_groups(0.05), lr=0.05, momentum=0.9)
    torch.manual_seed(2_000_003)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(loop(X, edges), Y).backward()
        optimizer.step()
    assert_close(weights(model), weights(loop))


def test_inputs_without_a_common_first_dimension_get_one_draw():
    class Pooled(Graph):
        def forward(self, x, edges):
            return self.fc(x).index_add(0, edges[0], self.fc(x)[edges[1]])

    graph = ((X, torch.randint(0, 96, (2, 300))), Y)
    model = tacit.variational(Pooled(), rank=2, likelihood=tacit.Categorical())
    with pytest.warns(UserWarning, match="because a batch can't be split .*first dimension"):
        fit(model, DataLoader([graph], batch_size=None), epochs=2)


def test_unbatched_inputs_get_one_draw():
    rows = [(X[i], X[i, :1]) for i in range(4)]
    model = tacit.variational(nn.Linear(4, 1), rank=2, likelihood=tacit.Gaussian())
    with pytest.warns(UserWarning, match="the network can't be applied to a part of a batch"):
        fit(model, DataLoader(rows, batch_size=None), epochs=1, lr=0.01)


def test_batches_of_one_example_leave_the_choice_to_a_larger_one(tmp_path):
    batches = [(X[:1], Y[:1]), (X[1:17], Y[1:17])]
    model = model_of(COUPLED["mean"])
    with pytest.warns(UserWarning, match="one draw of the weights per step instead of 8"):
        fit(model, DataLoader(batches, batch_size=None), epochs=1)


def test_a_resumed_run_keeps_the_number_of_draws(tmp_path):
    whole, parts = (model_of(COUPLED["mean"]) for _ in range(2))
    with pytest.warns(UserWarning, match="one draw of the weights"):
        fit(whole, epochs=2)
    with pytest.warns(UserWarning, match="one draw of the weights"):
        fit(model_of(COUPLED["mean"]), epochs=1, checkpoint=tmp_path)
    fit(parts, epochs=2, checkpoint=tmp_path)
    assert_close(weights(parts), weights(whole), rtol=0, atol=0)


def test_the_trial_uses_no_random_numbers():
    runs = [make_model(), make_model()]
    fit(runs[0], epochs=1)
    fit(runs[1], epochs=1, draws=8)
    assert torch.equal(weights(runs[0]), weights(runs[1]))
