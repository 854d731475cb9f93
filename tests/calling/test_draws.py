"""draws=K: the batch is split into K groups, each with its own draw."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from nets import Branching, Structured, TwoInputs, cnn, force_loop, generator, mlp
from tacit import LowRank

X = torch.linspace(-1, 1, 40).reshape(10, 4)


@pytest.fixture
def model():
    return tacit.variational(mlp(4, 8, 3), {"0": LowRank(3), "3": LowRank(2)})


@pytest.mark.parametrize("draws", [1, 2, 3, 4, 5, 7, 10])
def test_each_group_has_its_own_draw(model, draws):
    output = model(X, draws=draws, generator=generator())
    assert output.shape == (10, 3)
    shape = () if draws == 1 else draws
    weights = model.sample(shape, generator=generator())
    expected = []
    for k, part in enumerate(X.tensor_split(draws)):
        one = weights if draws == 1 else {name: tensor[k] for name, tensor in weights.items()}
        expected.append(model(part, weights=one))
    assert_close(output, torch.cat(expected))


@pytest.mark.parametrize("draws", [3, 7])  # uneven groups, which don't run in one pass
def test_draws_in_a_loop_and_under_vmap_agree(model, draws):
    vectorised = model(X, draws=draws, generator=generator())
    assert model.call_notes == []
    force_loop(model)
    assert_close(model(X, draws=draws, generator=generator()), vectorised)
    [note] = model.call_notes
    assert note.startswith("draws in train mode run in a loop, vmap can't: ")


def test_draws_work_in_eval_mode(model):
    model.eval()
    assert not torch.equal(model(X, draws=5), model(X))


def test_the_default_number_of_draws_applies_in_train_mode():
    model = tacit.variational(mlp(4, 8, 3), draws=5)
    row = X[:1].expand(10, 4)
    assert len(model(row).unique(dim=0)) == 5
    assert len(model(row, draws=1).unique(dim=0)) == 1  # the argument overrides the default
    assert model(row, samples=2).shape == (2, 10, 3)
    assert len(model.eval()(row).unique(dim=0)) == 1


def test_the_default_is_at_most_one_draw_per_example():
    # The last batch of an epoch may be small; that must not stop training.
    model = tacit.variational(mlp(4, 8, 3), draws=5)
    assert model(X[:3]).shape == (3, 3)
    assert model(X[:1]).shape == (1, 3)


def test_more_draws_than_examples_are_refused(model):
    with pytest.raises(
        ValueError, match="draws: expected at most one per example, 10; received 11"
    ):
        model(X, draws=11)


def test_all_tensor_inputs_are_split_alike():
    model = tacit.variational(TwoInputs(), ["left", "right"], rank=2)
    context = torch.randn(10, 2)
    whole = model(
        X[:, :3], context=context, scale=torch.tensor(2.0), draws=3, generator=generator()
    )
    weights = model.sample(3, generator=generator())
    last = {name: tensor[2] for name, tensor in weights.items()}
    expected = model(X[7:, :3], context=context[7:], scale=2.0, weights=last)
    assert_close(whole["logits"][7:], expected["logits"])


def test_inputs_and_outputs_may_be_structured():
    model = tacit.variational(Structured())
    output = model({"x": X[:, :3]}, draws=4)
    assert output.logits.shape == (10, 2)
    assert [tuple(hidden.shape) for hidden in output.hidden] == [(10, 5), (10, 5)]


def test_a_module_that_vmap_cannot_run_accepts_draws():
    model = tacit.variational(Branching())
    assert model(X[:, :3], draws=3).shape == (10, 2)


@pytest.mark.parametrize("inputs", [(torch.randn(10, 3), torch.randn(9, 2)), ("text",)])
def test_inputs_without_a_common_batch_are_refused(inputs):
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x, *rest):
            return self.linear(x)

    model = tacit.variational(First())
    with pytest.raises(ValueError, match="draws: expected tensor inputs that all have the batch"):
        model(*inputs, draws=2)


@pytest.mark.parametrize("reduce", [torch.sum, lambda y: y.mT])
def test_outputs_without_a_batch_dimension_are_refused(reduce):
    class Reduced(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return reduce(self.linear(x))

    model = tacit.variational(Reduced())
    with pytest.raises(ValueError, match="draws: expected outputs whose first dimension"):
        model(X, draws=2)


@pytest.mark.parametrize(
    "module",
    [
        nn.MultiheadAttention(4, 2),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1, enable_nested_tensor=False),
        nn.TransformerDecoderLayer(4, 2, 8),
    ],
    ids=lambda module: type(module).__name__,
)
def test_time_first_is_not_mistaken_for_the_batch(module):
    x = torch.randn(6, 2, 4)
    inputs = (x,) * {"MultiheadAttention": 3, "TransformerDecoderLayer": 2}.get(
        type(module).__name__, 1
    )
    model = tacit.variational(module)
    model(*inputs)
    with pytest.raises(ValueError, match=f"nn.{type(module).__name__} has batch_first=False"):
        model(*inputs, draws=2)


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_state_of_a_recurrent_layer_is_not_mistaken_for_the_batch(batch_first):
    # h_n is (layers, batch, hidden): two layers would look like a group of two examples.
    model = tacit.variational(nn.LSTM(4, 5, 2, batch_first=batch_first))
    with pytest.raises(ValueError, match="the state that nn.LSTM returns"):
        model(torch.randn(4, 4, 4), draws=2)


def test_lists_with_one_entry_per_example_are_refused():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x, factors):
            return self.linear(x) * torch.tensor(factors)[: len(x), None]

    model = tacit.variational(Scaled())
    assert model(X, list(range(10))).shape == (10, 3)
    with pytest.raises(ValueError, match="a list with one entry for each of the 10 examples"):
        model(X, list(range(10)), draws=2)


@pytest.mark.parametrize("draws", [3, 5])
def test_batch_norm_normalises_each_group_and_updates_running_statistics_once(draws):
    model = tacit.variational(cnn(nn.BatchNorm2d))
    x = torch.randn(12, 1, 8, 8)
    weights = model.sample(draws, generator=generator())
    reference = copy.deepcopy(model)
    outputs, means = [], []
    for k, part in enumerate(x.tensor_split(draws)):
        one = copy.deepcopy(reference)
        outputs.append(one(part, weights={name: tensor[k] for name, tensor in weights.items()}))
        means.append(one.module[1].running_mean)
    assert_close(model(x, draws=draws, generator=generator()), torch.cat(outputs))
    assert_close(model.module[1].running_mean, torch.stack(means).mean(0))
    assert model.module[1].num_batches_tracked == 1


def test_group_norm_is_vectorised():
    model = tacit.variational(cnn(lambda channels: nn.GroupNorm(2, channels)))
    assert model(torch.randn(9, 1, 8, 8), draws=4).shape == (9, 3)
    assert model.call_notes == []


def test_batch_norm_gets_at_least_two_examples_per_group_by_default():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model = tacit.variational(net, draws=8)
    for size in (2, 3, 9, 16):
        assert model(torch.randn(size, 4)).shape == (size, 2)
    assert model.call_notes == []  # vectorised, including the running statistics


def test_an_empty_batch_gives_an_empty_output():
    model = tacit.variational(mlp(4, 8, 3), draws=5)
    assert model(X[:0]).shape == (0, 3)


class TestWhatCannotBeSplit:
    class PerExample(nn.Module):
        """Multiplies each example by a value from an argument that is not a tensor."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x, extra=None):
            return self.linear(x)

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x, adjacency):
            return adjacency @ self.linear(x)

    @pytest.mark.parametrize(
        "extra",
        [
            np.ones(10),
            {"a": np.ones((10, 2))},
            ["word"] * 10,
            {"words": ["word"] * 10},
            [["word"] * 10, 3],
            range(10),
        ],
        ids=lambda extra: type(extra).__name__,
    )
    def test_values_per_example_outside_of_tensors(self, extra):
        model = tacit.variational(self.PerExample())
        for kwargs in ({"draws": 2}, {"draws": 3}):
            with pytest.raises(ValueError, match="one entry for each of the 10 examples can't be"):
                model(X, extra, **kwargs)
        model(X, extra, draws=1)

    @pytest.mark.parametrize("extra", [np.ones(3), np.array(2.0), ["a", "b"], "ten words.", 10])
    def test_other_values_are_shared(self, extra):
        assert tacit.variational(self.PerExample())(X, extra, draws=2).shape == (10, 3)

    @pytest.mark.parametrize("draws", [2, 3])
    def test_a_graph(self, draws):
        model = tacit.variational(self.Graph())
        for _ in range(2):
            with pytest.raises(ValueError, match=r"draws: the module runs on the whole .* draws=1"):
                model(X, torch.eye(10), draws=draws)
        assert model(X, torch.eye(10), draws=1).shape == (10, 3)

    @pytest.mark.parametrize("draws", [2, 3])
    def test_a_single_example(self, model, draws):
        with pytest.raises(ValueError, match="for a single example or a whole graph use draws=1"):
            model(X[0], draws=draws)

    def test_a_wrong_call_raises_the_modules_own_error(self, model):
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model(X[:, :3], draws=2)
