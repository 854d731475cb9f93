"""draws="each": a draw of the weights for every example, where the module allows it."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import tacit
from each_draws import ONES, X, distinct, relative
from nets import generator, mlp
from tacit import Kronecker, LowRank, RankOneSum, Relative

STRUCTURES = pytest.mark.parametrize(
    "covariance",
    [Relative(0.5), RankOneSum(2, 0.5), Kronecker(2, 2, 0.5)],
    ids=lambda covariance: type(covariance).__name__,
)


def test_every_example_has_its_own_draw_in_train_mode_and_the_mean_in_eval_mode():
    model = relative(mlp(4, 8, 3))
    assert distinct(model(ONES)) == 10
    model.eval()
    assert torch.equal(model(X), model.module(X))
    assert distinct(model(ONES, draws="each")) == 10
    assert model.call_notes == [
        "draws of each example in train mode run in activation space",
        "draws of each example in eval mode run in activation space",
    ]


def test_each_is_the_default_only_if_the_noise_of_all_layers_acts_on_activations():
    assert relative(mlp(4, 8, 3)).draws == "each"
    mixed = tacit.variational(mlp(4, 8, 3), {"0": Relative(), "3": LowRank(2)})
    assert mixed.draws == 1
    assert distinct(mixed(ONES)) == 1
    assert distinct(mixed(ONES, draws="each")) == 10
    assert relative(mlp(4, 8, 3), draws=2).draws == 2


@pytest.mark.parametrize(
    ("draws", "error"), [("all", TypeError), (0, ValueError), (1.5, TypeError)]
)
def test_other_numbers_of_draws_are_refused(draws, error):
    model = relative(mlp(4, 8, 3))
    with pytest.raises(error, match="draws: expected"):
        model(X, draws=draws)
    with pytest.raises(error, match="draws: expected"):
        relative(mlp(4, 8, 3), draws=draws)


def test_each_excludes_samples_and_weights():
    model = relative(mlp(4, 8, 3))
    with pytest.raises(ValueError, match="samples and draws exclude each other"):
        model(X, samples=2, draws="each")
    with pytest.raises(ValueError, match="weights and draws exclude each other"):
        model(X, weights=model.sample(), draws="each")


def test_a_structure_without_activation_space_is_refused():
    model = tacit.variational(mlp(4, 8, 3), {"*": LowRank(3)})
    with pytest.raises(ValueError, match="expected a random layer whose noise can act on"):
        model(ONES, draws="each")
    with pytest.raises(ValueError, match="expected a random layer whose noise can act on"):
        tacit.variational(mlp(4, 8, 3), {"*": LowRank(3)}, draws="each")


@pytest.mark.parametrize("kwargs", [{}, {"draws": "each"}], ids=str)
def test_a_generator_determines_the_draws_of_the_first_call_too(kwargs):
    model = relative(mlp(4, 8, 3))
    first, second = (model(X, generator=generator(), **kwargs) for _ in range(2))
    assert torch.equal(first, second)
    torch.manual_seed(3)
    third = relative(copy.deepcopy(model.module))(X)
    torch.manual_seed(3)
    assert torch.equal(model(X), third)


def test_batches_of_any_size_are_served():
    model = relative(mlp(4, 8, 3))
    for size in (1, 10, 7, 1, 0):
        assert model(X[:size]).shape == (size, 3)
    assert relative(mlp(4, 8, 3))(X[:0]).shape == (0, 3)


def test_batch_norm_normalises_the_whole_batch_and_takes_one_step():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    model = tacit.variational(net, {"0": Relative()})
    output = model(X)
    assert_close(output.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
    assert net[1].num_batches_tracked == 1
    assert model.activation_space.verified == {True: True}


def test_a_transformer_runs_in_activation_space():
    net = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    where = dict.fromkeys(["self_attn", "self_attn.out_proj", "linear1", "linear2"], Relative(0.5))
    model = tacit.variational(net, where)
    assert distinct(model(torch.ones(6, 5, 4))) == 6
    assert model.activation_space.verified == {True: True}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.lstm(x)[0])


class Transposing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.first(x) @ self.last.weight.T


def test_notes_name_the_attribute_of_a_weight_that_has_no_noise_per_example():
    model = relative(Transposing())
    assert distinct(model(ONES)) == 10  # the first layer has its own draws
    assert "last.weight has one draw per batch: .T can't have more" in repr(model)


def test_an_lstm_has_one_draw_per_batch_and_the_notes_say_so():
    model = relative(Recurrent().double())
    x = torch.ones(6, 5, 4, dtype=torch.float64)
    assert distinct(model(x)) == 6  # the last layer has its own draws
    assert "lstm.weight_ih_l0 has one draw per batch: lstm can't have more" in repr(model)
    assert "last.weight has one draw" not in repr(model)
    weights = model.sample(3, generator=generator())
    assert_close(model(x, samples=3, generator=generator()), model(x, weights=weights))


def test_an_operation_on_inputs_without_the_batch_has_one_draw_per_batch():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.position, self.linear = nn.Embedding(7, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.linear(x + self.position(torch.arange(x.shape[1])))

    model = relative(Positions())
    assert distinct(model(torch.ones(10, 7, 4))) == 10
    assert "position.weight has one draw per batch" in repr(model)


def test_a_wrong_call_raises_the_modules_own_error_and_changes_nothing():
    model = relative(mlp(4, 8, 3))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        model(X[:, :3])
    assert distinct(model(ONES)) == 10


def test_transforms_of_users_have_one_draw():
    model = relative(mlp(4, 8, 3))
    assert torch.func.vmap(model, randomness="different")(X.view(2, 5, 4)).shape == (2, 5, 3)
    gradient = torch.func.grad(lambda x: model(x).sum())(X)
    assert gradient.shape == X.shape


def test_copies_and_pickles_draw_the_same():
    model = relative(mlp(4, 8, 3))
    expected = model(X, generator=generator())
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(same(X, generator=generator()), expected)


def test_a_parameter_read_from_a_plain_list_raises_an_error():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.listed = [self.linear.weight]

        def forward(self, x):
            return self.linear(x) + F.linear(x, self.listed[0])

    with pytest.raises(RuntimeError, match=r"'linear.weight' other than as an attribute"):
        relative(Listed())(X)


@STRUCTURES
@pytest.mark.parametrize("reentrant", [False, True])
def test_the_whole_model_may_be_checkpointed(reentrant, covariance):
    model = relative(mlp(4, 8, 3).double(), covariance)

    def gradients(call):
        torch.manual_seed(1)
        model.zero_grad()
        x = X.double().requires_grad_()
        call(x).square().sum().backward()
        return [x.grad, *(p.grad.clone() for p in model.parameters())]

    def recomputed(x):
        return checkpoint(model, x, use_reentrant=reentrant)

    assert_close(gradients(recomputed), gradients(model))


@STRUCTURES
def test_autocast_runs_layers_in_bfloat16(covariance):
    model = relative(mlp(4, 8, 3), covariance)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(X, generator=generator())
    assert output.dtype == torch.bfloat16
    assert model.activation_space.verified == {True: True}
    assert_close(output.float(), model(X, generator=generator()), atol=0.05, rtol=0.05)
    output.float().sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@STRUCTURES
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_the_model_compiles_to_one_graph_and_trains(backend, covariance):
    if backend == "inductor" and not isinstance(covariance, Relative):
        pytest.skip("compiled for one structure, which takes long")
    torch.compiler.reset()
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    model = relative(net, covariance)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    x = torch.ones(5, 1, 6, 6)
    with pytest.raises(RuntimeError, match="call the model once in this mode"):
        compiled(x)
    model(x)
    output = compiled(x)
    assert distinct(output) == 5
    assert not torch.equal(output, compiled(x))  # noise is not frozen into the graph
    output.sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    if backend == "aot_eager":
        torch.manual_seed(1)
        ours = compiled(x)
        torch.manual_seed(1)
        assert_close(ours, model(x))


def test_fit_trains_with_a_draw_for_each_example():
    y = torch.randint(3, (10,))
    for draws in (None, "each"):
        model = relative(mlp(4, 8, 3), likelihood=tacit.Categorical())
        tacit.fit(model, (X, y), epochs=1, lr=0.1, batch_size=5, draws=draws)
        assert model.call_notes == ["draws of each example in train mode run in activation space"]
    plain = tacit.variational(mlp(4, 8, 3), {"*": LowRank(2)}, likelihood=tacit.Categorical())
    with pytest.raises(TypeError, match="draws: expected"):
        tacit.fit(plain, (X, y), epochs=1, lr=0.1, draws="all")


def test_samples_of_a_parameter_that_forward_reads_from_a_list_are_refused():
    class Bypassing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.kept = [self.layer.weight]

        def forward(self, x):
            return x @ self.kept[0].T

    model = tacit.variational(Bypassing(), {"layer": tacit.Relative(0.5)}).eval()
    with pytest.raises(RuntimeError, match="other than as an attribute"):
        model(torch.randn(4, 3), samples=2)


@pytest.mark.parametrize("call", [{"draws": "each"}, {"samples": 2}])
def test_noise_in_a_bias_of_attention_has_one_draw(call):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    model = tacit.variational(Attention(), {"attention.bias_k": Relative(0.5)})
    assert model(torch.randn(5, 3, 4), **call).isfinite().all()
    space = model.activation_space
    assert "attention.bias_k" in space.refused | space.refused_samples
