"""Verification of draws="each": where examples depend on each other, they share one draw."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import tacit
from each_draws import ONES, X, distinct, relative
from nets import generator, mlp
from tacit import LowRank, Relative


def test_one_example_does_not_show_that_examples_are_independent():
    model = relative(Coupled())
    model(X[:1])
    assert model.activation_space.verified == {}


class Coupled(nn.Module):
    """Subtracts the mean over the batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        y = self.linear(x)
        return y - y.mean(0)


def test_a_module_that_couples_examples_has_one_draw():
    model = relative(Coupled())
    assert_close(model(X).mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    assert model.call_notes == [
        "draws of each example in train mode do not run in activation space: one draw per batch"
    ]
    output = model(X, draws="each", generator=generator())
    assert_close(output, model(X, draws=1, generator=generator()))


@pytest.mark.parametrize("reduce", [torch.sum, lambda y: y.mT], ids=["scalar", "transposed"])
def test_outputs_without_a_batch_have_one_draw(reduce):
    class Reduced(Coupled):
        def forward(self, x):
            return reduce(self.linear(x))

    model = relative(Reduced())
    weights = model.sample(generator=generator())
    assert_close(model(X, generator=generator()), model(X, weights=weights))


def test_a_graph_has_one_draw():
    class Graph(Coupled):
        def forward(self, x, adjacency):
            return adjacency @ self.linear(x)

    assert distinct(relative(Graph())(ONES, torch.eye(10))) == 1


def test_a_loss_beside_the_outputs_is_that_of_all_draws():
    class WithLoss(Coupled):
        def forward(self, x):
            y = self.linear(x)
            return {"loss": y.square().mean(), "logits": y}

    output = relative(WithLoss())(ONES)
    assert distinct(output["logits"]) == 10
    assert_close(output["loss"], output["logits"].square().mean())


def test_zero_outputs_leave_the_question_open():
    net = mlp(4, 8, 3)
    nn.init.zeros_(net[3].weight)
    nn.init.zeros_(net[3].bias)
    model = relative(net)
    assert torch.equal(model(X), torch.zeros(10, 3))
    assert model.call_notes == []
    nn.init.normal_(net[3].weight)
    assert distinct(model(ONES)) == 10


@pytest.mark.parametrize("functional", [False, True])
def test_dropout_is_no_obstacle(functional):
    class Dropping(Coupled):
        def forward(self, x):
            return F.dropout(self.linear(x), 0.5, self.training)

    model = relative(Dropping() if functional else mlp(4, 8, 3, dropout=0.5))
    model(X)
    assert model.activation_space.verified == {True: True}


class TimeMajor(nn.Module):
    """Flattens (B, T, D) to (T B, D), with time first."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        size, steps, _ = x.shape
        rows = self.layer(x.transpose(0, 1).reshape(steps * size, -1))
        return rows.reshape(steps, size, -1).transpose(0, 1)


def test_a_batch_in_a_new_place_is_verified_again():
    model = relative(TimeMajor())
    model(torch.randn(5, 1, 4))  # the batch is first
    output = model(torch.ones(5, 3, 4))  # flat, but not with the batch first
    assert_close(output, output[:, :1].expand_as(output))
    assert model.activation_space.verified == {True: False}


def test_a_batch_in_a_new_place_is_served_if_outputs_agree():
    class Flattened(Coupled):
        def forward(self, x):
            return self.linear(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    model = relative(Flattened())
    model(torch.randn(5, 1, 4))
    model(torch.randn(1, 3, 4))  # a single example tells nothing
    assert model.activation_space.layouts == {"linear.weight": {"first"}}
    assert distinct(model(torch.ones(5, 3, 4))) == 5
    assert model.activation_space.layouts == {"linear.weight": {"first", "flat"}}
    assert model.activation_space.verified == {True: True}


def test_a_call_without_a_batch_does_not_end_draws_of_each_example():
    model = relative(nn.Sequential(nn.Conv2d(1, 2, 3)))
    image = torch.ones(5, 1, 6, 6)
    model(image)
    assert model(image[0], samples=3).shape == (3, 2, 4, 4)
    assert distinct(model(image)) == 5
    assert model.call_notes == ["draws of each example in train mode run in activation space"]


class OtherInEvalMode(nn.Linear):
    def forward(self, x):
        return super().forward(x) if self.training else x @ self.weight.T + self.bias


def test_layers_that_eval_mode_refuses_have_one_draw_in_train_mode():
    model = tacit.variational(nn.Sequential(OtherInEvalMode(4, 3)), {"0": Relative(0.5)})
    assert distinct(model(ONES)) == 10
    model.eval()(X, draws="each")
    assert distinct(model.train()(ONES)) == 1
    torch.compiler.reset()
    assert distinct(torch.compile(model, backend="eager")(ONES)) == 1


class Counting(nn.Module):
    """Counts its calls in a buffer that it replaces, and in an attribute."""

    def __init__(self, output=lambda y: y):
        super().__init__()
        self.layer, self.output, self.calls = nn.Linear(4, 3), output, 0
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.count = self.count + 1
        return self.output(self.layer(x))


@pytest.mark.parametrize(
    ("covariance", "draws"), [(Relative(0.5), "each"), (LowRank(2), 2)], ids=["each", "groups"]
)
def test_trials_restore_buffers_that_forward_replaces(covariance, draws):
    model = tacit.variational(Counting(), {"layer": covariance}, draws=draws)
    model(X)
    assert model.module.count == 1


@pytest.mark.parametrize("output", [torch.mean, lambda y: y.T], ids=["loss", "batch last"])
def test_outputs_without_the_batch_first_are_tried_only_once(output):
    model = tacit.variational(Counting(output), {"layer": Relative(0.5)})
    model(X)
    model.module.calls = 0
    model(X)
    assert model.module.calls == 1


def test_a_compiled_model_refuses_a_batch_in_a_place_that_is_not_verified():
    class Transposing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x.transpose(0, 1)).transpose(0, 1) if len(x) > 5 else self.layer(x)

    torch.compiler.reset()
    model = relative(Transposing())
    model(torch.randn(5, 3, 4))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="Call the model once with such inputs"):
        compiled(torch.randn(6, 3, 4))
    model(torch.randn(6, 3, 4))
    assert distinct(compiled(torch.ones(6, 3, 4))) == 6


def test_a_compiled_model_heeds_that_examples_are_coupled():
    torch.compiler.reset()
    model = relative(Coupled())
    model(X)
    assert distinct(torch.compile(model, backend="eager")(ONES)) == 1


@pytest.mark.parametrize("kwargs", [{"samples": 2}, {"draws": "each"}], ids=str)
def test_weights_beside_noise_in_activation_space_are_verified_too(kwargs):
    class Bypassing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)
            self.kept = [self.last.weight]

        def forward(self, x):
            return F.linear(self.first(x), self.kept[0], self.last.bias)

    model = tacit.variational(Bypassing(), {"first": Relative(0.5), "last": LowRank(2)})
    with pytest.raises(RuntimeError, match=r"'last\.weight' other than as an attribute"):
        model(X, **kwargs)


@pytest.mark.parametrize("kwargs", [{}, {"draws": 2}])
def test_masked_logits_are_compared_once(kwargs):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.calls = mlp(4, 8, 3), 0

        def forward(self, x):
            self.calls += 1
            return self.net(x).masked_fill(torch.arange(3) == 1, -torch.inf)

    model = relative(Masked(), **kwargs)
    model(ONES)
    model.module.calls = 0
    assert distinct(model(ONES)) == kwargs.get("draws", 10)
    assert model.module.calls == 1


def test_outputs_that_are_not_a_number_leave_the_question_open():
    model = relative(nn.Sequential(mlp(4, 8, 3), nn.Linear(3, 3)))
    model(torch.full((10, 4), torch.nan))
    assert not model.activation_space.verified


class Dropping(nn.Module):
    """Normalises over the batch in train mode only, beside dropout of some kind."""

    def __init__(self, drop, divide):
        super().__init__()
        self.net, self.drop, self.divide = mlp(4, 8, 3), drop, divide

    def forward(self, x):
        y = self.drop(self.net(x), self.training)
        if self.training:
            y = y - y.mean(0)
            y = y / (y.square().sum(0) / (len(y) - 1)).sqrt() if self.divide else y
        return y


def attention(y, training):
    y = y[:, None]
    return F.scaled_dot_product_attention(y, y, y, dropout_p=0.5 * training)[:, 0]


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize(
    "drop",
    [lambda y, training: F.dropout(y, 0.5, training), attention],
    ids=["dropout", "attention"],
)
def test_dropout_does_not_hide_that_examples_are_coupled_in_train_mode(drop, divide):
    model = relative(Dropping(drop, divide))
    model(X)
    assert model.activation_space.verified == {True: False}


@pytest.mark.parametrize(
    "change",
    [lambda x, y: y + 1000, lambda x, y: (y, 1e4 * x), lambda x, y: (1e4 * x, y)],
    ids=["offset", "larger output", "first output larger"],
)
def test_large_outputs_do_not_hide_that_examples_are_coupled(change):
    class Changed(Coupled):
        def forward(self, x):
            return change(x, super().forward(x))

    class Independent(Changed):
        def forward(self, x):
            return change(x, self.linear(x))

    model = relative(Changed())
    model(X)
    assert model.activation_space.verified == {True: False}
    model = relative(Independent())
    model(X)
    assert model.activation_space.verified == {True: True}


def test_inputs_without_a_common_batch_have_one_draw_and_the_notes_say_so():
    class Masked(Coupled):
        def forward(self, x, mask):
            return self.linear(x) * mask[0, 0]

    model = relative(Masked())
    assert distinct(model(ONES, torch.ones(3, 3))) == 1
    assert "one draw per batch, not one per example: expected tensor inputs" in repr(model)
    with pytest.raises(ValueError, match="expected tensor inputs that all have the batch"):
        model(ONES, torch.ones(3, 3), draws="each")


@pytest.mark.parametrize("flag", [True, torch.ones(10, 1)], ids=["flag", "tensor"])
def test_an_argument_that_couples_examples_in_a_later_call_is_noticed(flag):
    class Optional(Coupled):
        def forward(self, x, center=None):
            y = self.linear(x)
            return y - y.mean(0) if center is not None else y

    model = relative(Optional())
    assert distinct(model(ONES)) == 10
    assert_close(model(ONES, center=flag), torch.zeros(10, 3), atol=1e-6, rtol=0)
