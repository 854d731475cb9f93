"""Modules that don't use sampled weights as they should are refused in the first training call."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

import tacit
from nets import Tied, TwoInputs, generator, mlp
from tacit import LowRank

X = torch.linspace(-1, 1, 32).reshape(8, 4)
CALLS = pytest.mark.parametrize(
    "kwargs", [{}, {"draws": 4}, {"draws": 3}, {"samples": 3}, {"samples": 1}], ids=str
)


class Constrained(nn.Module):
    """Clamps its weight in forward."""

    def __init__(self, through_data):
        super().__init__()
        self.linear, self.through_data = nn.Linear(4, 3), through_data

    def forward(self, x):
        if self.through_data:
            self.linear.weight.data.clamp_(-0.1, 0.1)
        else:
            with torch.no_grad():
                self.linear.weight.clamp_(-0.1, 0.1)
        return self.linear(x)


class InAList(nn.Module):
    """Keeps its weight in a plain list."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.weights = [self.linear.weight]

    def forward(self, x):
        return F.linear(x, self.weights[0])


@CALLS
@pytest.mark.parametrize("through_data", [False, True])
def test_weights_changed_in_forward(kwargs, through_data):
    model = tacit.variational(Constrained(through_data), {"linear": LowRank(3)})
    with pytest.raises(RuntimeError, match="forward changes 'linear.weight' in place"):
        model(X, **kwargs)


@CALLS
def test_a_weight_in_a_plain_list(kwargs):
    model = tacit.variational(InAList(), {"linear": LowRank(3)})
    with pytest.raises(RuntimeError, match="uses the parameter 'linear.weight' other than as an"):
        model(X, **kwargs)


@CALLS
def test_a_weight_tied_after_wrapping(kwargs):
    net = mlp(4, 4, 4)
    model = tacit.variational(net, {"0": LowRank(3)})
    net[3].weight = net[0].weight
    with pytest.raises(RuntimeError, match=r"'0.weight' was tied to 3.weight after the module"):
        model(X, **kwargs)


def test_a_weight_untied_after_wrapping():
    model = tacit.variational(Tied(), {"head": LowRank(3)})
    model.module.head.weight = nn.Parameter(torch.zeros(11, 6))
    with pytest.raises(RuntimeError, match=r"'head.weight' was untied from embedding.weight"):
        model(torch.arange(4))


def test_a_weight_tied_after_training_is_found_at_the_next_change_to_train_mode():
    net = mlp(4, 4, 4)
    model = tacit.variational(net, {"0": LowRank(3)})
    model(X)
    net[3].weight = net[0].weight
    for same in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        same.eval().train()
        with pytest.raises(RuntimeError, match="was tied to"):
            same(X)


def test_unused_and_frozen_layers_are_not_refused():
    model = tacit.variational(TwoInputs(), {"*": LowRank(2)})
    model(X[:, :3]).get("logits").sum().backward()  # `right` is not used
    net = mlp(4, 4, 3).requires_grad_(False)
    assert tacit.variational(net, {"0": LowRank(2)})(X).requires_grad


def test_infinite_weights_are_not_taken_for_changed_ones():
    model = tacit.variational(mlp(4, 4, 3), {"0": LowRank(2)})
    with torch.no_grad():
        model.module[0].weight.fill_(float("nan"))
    assert model(X).isnan().all()


@pytest.mark.parametrize("kwargs", [{}, {"draws": 4}, {"samples": 3}], ids=str)
def test_cached_parametrizations_of_random_weights(kwargs):
    net = mlp(4, 4, 3)
    parametrizations.orthogonal(net[0])
    model = tacit.variational(net, {"0.parametrizations.weight.original": LowRank(2)})
    model(X, **kwargs)
    with (
        parametrize.cached(),
        pytest.raises(RuntimeError, match=r"parametrize.cached\(\) keeps the first draw"),
    ):
        model(X, **kwargs)
    with parametrize.cached():
        model.eval()
        assert torch.equal(model(X), net(X))


def test_cached_parametrizations_of_other_weights():
    net = mlp(4, 4, 3)
    parametrizations.orthogonal(net[0])
    model = tacit.variational(net, {"3": LowRank(2)})
    with parametrize.cached():
        assert not torch.equal(model(X), model(X))


class TestEmbeddings:
    WORDS = torch.tensor([[0, 1, 2], [3, 0, 0]])

    @pytest.mark.parametrize("structure", [LowRank(3), tacit.Kronecker(2, 2), tacit.Diagonal()])
    @pytest.mark.parametrize("kwargs", [{}, {"draws": 2}, {"samples": 3}], ids=str)
    def test_the_padding_row_has_no_noise(self, structure, kwargs):
        net = nn.Embedding(5, 4, padding_idx=0)
        model = tacit.variational(net, {"": structure})
        output = model(self.WORDS, **kwargs)
        padding = (self.WORDS == 0).expand(output.shape[:-1])
        assert (output[padding] == 0).all()
        assert (output[~padding] != net(self.WORDS).expand(output.shape)[~padding]).any()
        output.square().sum().backward()
        assert (net.weight.grad[0] == 0).all()
        assert net.weight.grad[1:4].abs().sum() > 0
        if isinstance(structure, LowRank):
            assert (model.factors.weight.grad[:, 0] == 0).all()

    def test_neither_has_that_of_a_tied_embedding(self):
        net = Tied()
        net.embedding.padding_idx = 2
        model = tacit.variational(net, {"head": LowRank(3)})
        drawn = model.sample(4)["head.weight"]
        assert torch.equal(drawn[:, 2], net.head.weight[2].expand(4, -1))
        assert not torch.equal(drawn[:, 1], net.head.weight[1].expand(4, -1))

    def test_sampling_with_padding_agrees_with_a_dense_reference(self):
        net = nn.Embedding(5, 4, padding_idx=-1).double()
        model = tacit.variational(net, {"": LowRank(3)})
        z = model.distributions[""].draw_noise((), generator=generator())
        expected = net.weight + torch.einsum("r,rij->ij", z, model.factors.weight)
        drawn = model.sample(generator=generator())["weight"]
        torch.testing.assert_close(drawn[:-1], expected[:-1])
        assert torch.equal(drawn[-1], net.weight[-1])

    @pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
    def test_sparse_gradients_and_renormalisation_are_refused(self, kind):
        with pytest.raises(ValueError, match=r"'' has sparse=True: a sample .* Set sparse=False"):
            tacit.variational(kind(5, 4, sparse=True), {"": LowRank(2)})
        with pytest.raises(ValueError, match=r"'' has max_norm=1, which would rescale a sample"):
            tacit.variational(kind(5, 4, max_norm=1.0), {"": LowRank(2)})
        net = nn.Sequential(kind(5, 4, sparse=True, max_norm=1.0), nn.Linear(4, 2))
        tacit.variational(net)  # deterministic by default
