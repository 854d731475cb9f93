"""Adapters: a frozen module whose random low-rank terms and head are all that is trained."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import tacit
from nets import generator, mlp
from tacit.weights.adapter import Adapter, adapted_layers

X = torch.randn(6, 4, generator=generator())


def adapted(rank=2, moved=True, net=None, **settings):
    torch.manual_seed(0)
    net = mlp(4, 8, 8, 3) if net is None else net
    model = tacit.variational(net, tacit.adapters(rank, **settings))
    if moved:
        for _, adapter in adapted_layers(model):
            nn.init.normal_(adapter.up.weight, std=0.3)
    return model


def trained(module):
    return [name for name, value in module.named_parameters() if value.requires_grad]


def test_a_layer_gets_a_scaled_product_of_two_thin_matrices():
    model = adapted(rank=2)
    layer = model.module[0]
    term = layer.adapter.up.weight @ layer.adapter.down.weight * 16 / 2
    assert_close(layer(X), F.linear(X, layer.weight + term, layer.bias))
    assert_close(layer(input=X), layer(X))
    assert type(layer) is nn.Linear


def test_terms_and_head_are_trained_and_random_and_the_rest_is_frozen():
    model = adapted()
    terms = [f"{i}.adapter.{side}" for i in (0, 3) for side in ("down", "up")]
    assert trained(model.module) == [f"{name}.weight" for name in terms] + ["6.weight", "6.bias"]
    assert {layer.label: layer.covariance for layer in model.layers} == dict.fromkeys(
        [*terms, "6"], tacit.Relative(0.35, axis=1)
    )
    assert model.draws == "each"
    assert "195 parameters, 83 of them trained, +" in repr(model)


def test_until_training_the_mean_and_every_draw_of_the_terms_are_the_pretrained_model():
    net = mlp(4, 8, 8, 3)
    expected = net(X)
    assert torch.equal(adapted(moved=False, net=copy.deepcopy(net)).eval()(X), expected)
    recipe = tacit.adapters(2)
    terms = tacit.variational(
        net, lambda net: {name: each for name, each in recipe(net).items() if "adapter" in name}
    )
    assert_close(terms(X), expected)
    assert_close(terms(X, samples=3), expected.expand(3, -1, -1))


def test_every_example_has_its_own_draw_with_the_distribution_of_the_samples():
    model = adapted(scale=0.5).double()
    x = X[:1].double()
    with torch.no_grad():
        each, samples = model(x.expand(4000, -1)), model(x, samples=4000)[:, 0]
    for moment in (lambda y: y, lambda y: (y - samples.mean(0)).square()):
        a, b = moment(each), moment(samples)
        error = ((a.var(0) + b.var(0)) / 4000).sqrt()
        assert ((a.mean(0) - b.mean(0)).abs() < 4 * error).all()
    assert model.call_notes == ["draws of each example in train mode run in activation space"]


def test_training_moves_what_is_trained_alone_and_fits():
    model = adapted(moved=False)
    before = copy.deepcopy(model.module.state_dict())
    model.likelihood = tacit.Categorical()
    y = (X[:, 0] > 0).long()
    history = tacit.fit(model, (X, y), epochs=60, lr=0.05, progress=False)
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    after = model.module.state_dict()
    assert [n for n in after if not torch.equal(after[n], before[n])] == trained(model.module)


def test_all_parameters_are_in_groups_and_frozen_ones_stay():
    model = adapted()
    frozen = model.module[0].weight.clone()
    optimizer = torch.optim.AdamW(model.param_groups(0.1, "adamw", weight_decay=0.1))
    model(X).square().sum().backward()
    optimizer.step()
    assert torch.equal(model.module[0].weight, frozen)


def test_merged_means_are_a_plain_module_with_the_same_outputs():
    model = adapted().eval()
    plain = tacit.deterministic(model)
    assert [type(layer) for layer in plain.modules()] == [
        type(layer) for layer in mlp(4, 8, 8, 3).modules()
    ]
    assert plain.state_dict().keys() == mlp(4, 8, 8, 3).state_dict().keys()
    assert_close(plain(X), model(X))
    assert all(value.requires_grad for value in plain.parameters())
    assert len(dict(adapted_layers(model))) == 2  # the model keeps its adapters
    again = adapted(net=plain)  # adapters of the merged module
    assert again.eval()(X).shape == (6, 3)


def test_a_half_precision_module_has_adapters_in_single_precision():
    model = adapted(net=mlp(4, 8, 8, 3).bfloat16()).eval()
    assert model.module[0].adapter.up.weight.dtype == torch.float32
    assert model(X.bfloat16()).dtype == torch.bfloat16
    plain = tacit.deterministic(model)
    assert plain[0].weight.dtype == torch.bfloat16
    assert_close(plain(X.bfloat16()), model(X.bfloat16()), atol=0.05, rtol=0.05)


def test_copies_and_pickles_have_adapters_of_their_own():
    model = adapted().eval()
    expected = model(X)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(X), expected)
        tacit.deterministic(other)
        other.module[0].adapter.up.weight.data.zero_()
        assert not torch.equal(other(X), expected)
    assert torch.equal(model(X), expected)


def test_an_ensemble_holds_the_terms_and_one_module():
    model = adapted().eval()
    networks = tacit.ensemble(model, 5, generator=generator())
    assert_close(networks(X), model(X, samples=5, generator=generator()))
    stored = dict(networks.weights.named_buffers())
    assert stored["0.adapter.up.weight"].shape == (5, 8, 2)
    assert "0.weight" not in stored
    program = torch.export.export(networks, (X,))
    assert_close(program.module()(X), networks(X))


def test_layers_and_head_by_name():
    model = adapted(layers=["3"], head=["6", "0"])
    assert len(dict(adapted_layers(model))) == 1
    assert {"0.weight", "0.bias", "6.weight", "6.bias"} < set(trained(model.module))
    assert len(dict(adapted_layers(adapted(layers=["[03]"])))) == 2
    without = adapted(head=[])
    assert [n for n in trained(without.module) if "adapter" not in n] == []


def test_other_noise_by_a_function_of_ones_own():
    recipe = tacit.adapters(2)
    model = tacit.variational(
        mlp(4, 8, 3), lambda net: {**recipe(net), "3": tacit.LowRank(5)}, draws=2
    )
    assert model.layers[-1].covariance == tacit.LowRank(5)


def test_layers_of_the_default_leave_out_attention_that_is_not_called_and_tied_weights():
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    net = nn.Sequential(nn.Embedding(50, 8), encoder, nn.Linear(8, 4))
    model = adapted(net=net)
    names = [name for name, part in net.named_modules() if isinstance(part, Adapter)]
    assert names == ["1.linear1.adapter", "1.linear2.adapter"]
    words = torch.randint(50, (3, 5))
    with torch.no_grad():  # torch's fast path would skip the adapters
        assert_close(model.eval()(words), tacit.deterministic(model)(words), atol=1e-5, rtol=1e-4)


def test_real_targets_have_less_noise_and_inputs_are_not_standardised():
    net = mlp(4, 8, 1)
    model = tacit.variational(net, tacit.adapters(1), likelihood=tacit.Gaussian())
    assert model.layers[0].covariance.scale == 0.1
    tacit.fit(model, (X, X[:, :1]), epochs=1, lr=0.01, progress=False)
    assert model.inputs is None
    model = tacit.variational(
        mlp(4, 8, 1), tacit.adapters(1, scale=0.2), likelihood=tacit.Gaussian()
    )
    assert model.layers[0].covariance.scale == 0.2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "adapters(rank): expected an integer of at least 1"),
        ({"scale": 0.0}, "adapters(scale): expected a number above 0"),
        ({"layers": ["fc"]}, "no linear layer matches 'fc'. There are: 0, 3, 6."),
        ({"head": ["fc"]}, "no layer with parameters matches 'fc'"),
        ({"layers": ["6"]}, "'6' is in the head, which is trained as a whole"),
        ({"rank": 5}, "a rank of at most 4, the smaller side of the layer '0', received 5"),
    ],
)
def test_impossible_choices(settings, message):
    net = mlp(4, 8, 8, 3)
    with pytest.raises(ValueError, match="adapters") as error:
        tacit.variational(net, tacit.adapters(**{"rank": 2, **settings}))
    assert message in str(error.value)
    assert all(value.requires_grad for value in net.parameters())  # it was not changed


def test_names_must_be_a_list():
    with pytest.raises(TypeError, match=r"adapters\(layers\): expected a list .* received 'fc'"):
        tacit.adapters(layers="fc")


def test_the_recipe_must_be_called():
    with pytest.raises(TypeError, match=r"expected a recipe with its rank, tacit.adapters\(rank=8"):
        tacit.variational(mlp(4, 8, 3), tacit.adapters)


def test_they_compile():
    model = adapted().eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(X), model(X))


def test_a_stopped_run_resumes_with_the_same_bits(tmp_path):
    def run(folder, callbacks=()):
        model = adapted(moved=False)
        y = (X[:, 0] > 0).long()
        tacit.fit(
            model, (X, y), epochs=4, lr=0.05, checkpoint=tmp_path / folder, callbacks=callbacks,
            likelihood=tacit.Categorical(), progress=False,
        )  # fmt: skip
        return model.state_dict()

    class Stopped(Exception):
        pass

    def stop(row, model):
        if row["epoch"] == 2:
            raise Stopped

    whole = run("whole")
    with pytest.raises(Stopped):
        run("parts", [stop])
    parts = run("parts")
    assert all(torch.equal(parts[name], value) for name, value in whole.items())


def test_modules_that_cannot_be_adapted():
    convolutions = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match=r"Sequential has none \(its head: 2\)"):
        tacit.variational(convolutions, tacit.adapters(1))
    attention = nn.Sequential(nn.MultiheadAttention(8, 2), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="is not called: nn.MultiheadAttention uses its weight"):
        tacit.variational(attention, tacit.adapters(1, layers=["0.out_proj"]))
    net = adapted().module
    with pytest.raises(ValueError, match="has adapters already. Merge them"):
        tacit.variational(net, tacit.adapters(2))
    assert len(tacit.variational(net).layers) == 5  # as the message says


@pytest.mark.parametrize("kind", [tacit.MaximalUpdate, tacit.NeuralTangent])
def test_only_the_standard_parametrization(kind):
    with pytest.raises(ValueError, match="the sizes of pretrained weights come from their"):
        tacit.variational(mlp(4, 8, 3), tacit.adapters(2), parametrization=kind())


def test_the_rank_belongs_to_the_recipe():
    with pytest.raises(ValueError, match=r"rank: expected in the recipe, tacit.adapters\(rank"):
        tacit.variational(mlp(4, 8, 3), tacit.adapters(2), rank=3)
