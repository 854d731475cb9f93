import re

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from nets import Bare, Tied, mlp
from tacit import FullRank, LowRank
from tacit.weights.selection import select_layers


def chosen(module, where, rank=None):
    return {layer.label: layer.covariance for layer in select_layers(module, where, rank)}


def net():
    return nn.ModuleDict(
        {
            "conv": nn.Conv2d(1, 4, 3),
            "norm": nn.BatchNorm2d(4),
            "block": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8)),
            "fc": nn.Linear(8, 5),
        }
    )


def test_the_default_is_relative_noise_in_all_layers_but_the_first():
    assert chosen(mlp(8, 8, 8), None) == {"3": tacit.Relative(0.35, axis=1)}
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10)))
    assert chosen(deep, None) == dict.fromkeys("123456789", tacit.Relative(0.7 / 3, axis=1))
    assert chosen(deep, tacit.relative_noise) == chosen(deep, None)


def test_the_default_leaves_out_queries_keys_and_values_of_attention():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    module = nn.Sequential(nn.Embedding(50, 8), layer, nn.Linear(8, 4))
    expected = ["1.self_attn.out_proj", "1.linear1", "1.linear2", "2"]
    assert list(chosen(module, None)) == expected
    named = nn.ModuleDict(
        {"query": nn.Linear(4, 4), "key": nn.Linear(4, 4), "output": nn.Linear(4, 4)}
    )
    assert list(chosen(nn.Sequential(nn.Linear(4, 4), named), None)) == ["1.output"]
    assert list(chosen(nn.MultiheadAttention(8, 2), None)) == ["out_proj"]
    fused = nn.ModuleDict({"qkv": nn.Linear(4, 12), "proj": nn.Linear(4, 4)})
    assert list(chosen(nn.Sequential(nn.Linear(4, 4), fused), None)) == ["1.proj"]
    heads = nn.ModuleDict({"policy": nn.Linear(4, 2), "value": nn.Linear(4, 1)})  # no attention
    assert list(chosen(nn.Sequential(nn.Linear(4, 4), heads), None)) == ["1.policy", "1.value"]


def test_a_continuous_likelihood_has_less_noise_by_default():
    def scales(likelihood):
        model = tacit.variational(mlp(8, 8, 1), likelihood=likelihood)
        return [layer.covariance.scale for layer in model.layers]

    assert scales(tacit.Gaussian()) == scales(tacit.HeteroscedasticGaussian()) == [0.1]
    assert scales(None) == scales(tacit.Bernoulli()) == [0.35]


def test_frozen_layers_are_random_only_if_named_or_all_are_frozen():
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    assert list(chosen(net, None)) == ["1", "2", "3"]
    net[1].requires_grad_(False)
    assert list(chosen(net, None)) == ["2", "3"]
    assert list(chosen(net, tacit.every_layer)) == ["0", "2", "3"]
    assert list(chosen(net, {"1": tacit.Relative()})) == ["1"]
    net[0].requires_grad_(False)
    net[2].weight.requires_grad_(False)  # a bias alone doesn't count
    assert chosen(net, None) == {"3": tacit.Relative(0.35, axis=1)}
    net.requires_grad_(False)
    assert list(chosen(net, None)) == ["1", "2", "3"]


def test_with_a_rank_the_default_is_low_rank_in_every_layer():
    assert chosen(mlp(8, 8, 8), None, rank=5) == dict.fromkeys(["0", "3"], LowRank(5, 0.25))
    assert chosen(mlp(8, 8, 8), tacit.every_layer) == chosen(mlp(8, 8, 8), None, rank=3)


def test_a_module_without_weight_matrices_is_low_rank_by_default():
    assert chosen(nn.LayerNorm(4), None) == chosen(nn.LayerNorm(4), tacit.every_layer)


def test_first_and_last_is_the_papers_recipe():
    assert chosen(net(), tacit.first_and_last) == {"conv": LowRank(10), "fc": LowRank(20)}


def test_recipes_limit_the_rank_to_the_number_of_parameters():
    assert chosen(mlp(2, 2, 1), tacit.first_and_last) == {"0": LowRank(6), "3": LowRank(3)}
    assert chosen(nn.Linear(3, 1), tacit.first_and_last) == {"": LowRank(4)}
    assert chosen(nn.Linear(3, 1), None, rank=9) == {"": LowRank(4, 0.25)}


def test_a_function_can_choose_the_layers():
    def last(module):
        return {"fc": FullRank()}

    assert chosen(net(), last) == {"fc": FullRank()}
    with pytest.raises(ValueError, match="rank= applies only to a list of names"):
        chosen(net(), last, rank=3)


def test_the_default_leaves_out_embeddings_and_norm_layers():
    module = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.Linear(8, 4), nn.LayerNorm(4))
    assert list(chosen(module, None)) == ["1", "2"]
    assert list(chosen(Bare(), None)) == ["linear"]
    assert list(chosen(nn.BatchNorm1d(4), None)) == [""]  # it has no other layer


def test_layers_are_selected_by_names_globs_and_lists():
    assert chosen(net(), {"fc": LowRank(4)}) == {"fc": LowRank(4)}
    assert list(chosen(net(), {"block.*": LowRank(2)})) == ["block.0", "block.2"]
    assert list(chosen(net(), {"*": LowRank(2)})) == ["conv", "norm", "block.0", "block.2", "fc"]
    assert chosen(net(), ["conv", "fc"], rank=7) == {"conv": LowRank(7), "fc": LowRank(7)}
    assert chosen(net(), ["fc"]) == {"fc": LowRank(10)}
    assert chosen(net(), "fc", rank=3) == {"fc": LowRank(3)}


def test_layers_are_in_the_order_of_the_module():
    where = {"fc": LowRank(1), "block.*": LowRank(2), "conv": LowRank(3)}
    assert list(chosen(net(), where)) == ["conv", "block.0", "block.2", "fc"]


def test_names_take_precedence_over_globs():
    assert chosen(net(), {"*": LowRank(2), "fc": LowRank(4)})["fc"] == LowRank(4)
    layers = select_layers(net(), {"f*": LowRank(2), "fc.weight": LowRank(4)})
    assert {layer.label: list(layer.shapes) for layer in layers} == {
        "fc.weight": ["weight"],
        "fc": ["bias"],
    }


def test_single_parameters_can_be_selected():
    layers = select_layers(net(), {"fc.bias": LowRank(2)})
    assert [(layer.label, list(layer.shapes)) for layer in layers] == [("fc.bias", ["bias"])]
    layers = select_layers(Bare(), {"token": LowRank(2), "gain": tacit.Diagonal()})
    assert [layer.label for layer in layers] == ["token", "gain"]
    labels = list(chosen(net(), {"*.weight": LowRank(2)}))
    assert labels == ["conv.weight", "norm.weight", "block.0.weight", "block.2.weight", "fc.weight"]


def test_weight_and_bias_can_have_separate_distributions():
    where = {"fc.weight": tacit.Kronecker(2, 2), "fc.bias": tacit.Diagonal()}
    model = tacit.variational(net(), where)
    assert set(model.distributions) == {"fc.weight", "fc.bias"}
    assert {name for name, _ in model.factors.named_parameters()} == {
        "fc.weight_input",
        "fc.weight_output",
        "fc.bias",
    }


def test_parameters_left_to_a_glob_have_their_own_label():
    where = {"fc.weight": LowRank(2), "fc.*": LowRank(3)}
    assert chosen(net(), where) == {"fc.weight": LowRank(2), "fc.bias": LowRank(3)}
    assert set(tacit.variational(net(), where).sample()) == {"fc.weight", "fc.bias"}


def test_the_default_finds_parametrized_layers():
    norm = nn.utils.parametrizations.weight_norm
    module = nn.Sequential(norm(nn.Linear(4, 4)), nn.Linear(4, 4), norm(nn.Linear(4, 2)))
    expected = ["0.parametrizations.weight", "2.parametrizations.weight"]
    assert list(chosen(module, tacit.first_and_last)) == expected
    assert list(chosen(module, tacit.every_layer)) == [expected[0], "1", expected[1]]
    assert list(chosen(module, None)) == ["1", expected[1]]
    assert tacit.variational(module)(torch.randn(3, 4), samples=2).shape == (2, 3, 2)


def test_the_default_leaves_out_parameters_tied_to_an_embedding():
    assert list(chosen(Tied(), None)) == ["body"]


@pytest.mark.parametrize("where", [{}, []])
def test_an_empty_selection_is_refused(where):
    with pytest.raises(ValueError, match="where: no layer is named. Layers with parameters: conv"):
        tacit.variational(net(), where)


def test_a_tied_parameter_has_one_distribution_under_either_name():
    assert list(select_layers(Tied(), {"head": LowRank(2)})[0].shapes) == ["weight", "bias"]
    by_glob = {l.label: list(l.shapes) for l in select_layers(Tied(), {"*e*d*": LowRank(2)})}  # noqa: E741
    assert by_glob == {"embedding": ["weight"], "head": ["bias"]}
    both = {"embedding": LowRank(2), "head": LowRank(2)}
    assert [list(layer.shapes) for layer in select_layers(Tied(), both)] == [["weight"], ["bias"]]
    with pytest.raises(ValueError, match=r"claimed twice.*'head.weight' are tied"):
        select_layers(Tied(), {"embedding": LowRank(2), "head": LowRank(3)})


def test_a_shared_layer_can_be_selected_by_either_name():
    shared = nn.Linear(3, 3)
    module = nn.ModuleDict({"a": shared, "b": shared})
    assert list(chosen(module, {"b": LowRank(2)})) == ["b"]
    assert list(chosen(module, {"*": LowRank(2)})) == ["a"]
    assert list(chosen(module, None)) == ["a"]
    tied = nn.ModuleDict({"a": shared, "b": nn.Linear(3, 3), "c": nn.Linear(3, 3)})
    tied["c"].weight = tied["b"].weight  # each with its own bias
    assert list(chosen(tied, None)) == ["b"]
    between = nn.ModuleDict({"a": shared, "between": nn.Linear(3, 3), "b": shared})
    assert list(chosen(between, None)) == ["between"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            {"fc2": LowRank(1)},
            "no layer matches 'fc2'. Layers with parameters: conv, norm, block.0, block.2, fc.",
        ),
        ({"head.*": LowRank(1)}, "no layer matches 'head.*'. Layers with parameters: conv"),
        ({"block.1": LowRank(1)}, "'block.1' has no parameters of its own"),
        ({"block": LowRank(1)}, "for layers inside it write 'block.*'"),
        (
            {"block.*": LowRank(1), "*.2": LowRank(2)},
            "the parameter 'block.2.weight' is claimed twice, by 'block.*' and by '*.2'",
        ),
        (
            {"fc": LowRank(1), "fc.weight": LowRank(2)},
            "the parameter 'fc.weight' is claimed twice, by 'fc' and by 'fc.weight'",
        ),
        ({"": LowRank(1)}, "'' has no parameters of its own"),
    ],
)
def test_selections_that_fail_are_refused_with_the_reason(where, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        tacit.variational(net(), where)


def test_a_long_list_of_layers_is_truncated():
    module = nn.Sequential(*(nn.Linear(1, 1) for _ in range(100)))
    with pytest.raises(ValueError, match="58, 59, and 40 more"):
        select_layers(module, ["nothing"])


@pytest.mark.parametrize("where", [{"fc": 10}, {"fc": "LowRank"}, {"fc": LowRank}])
def test_values_that_are_not_covariances_are_refused(where):
    with pytest.raises(TypeError, match=r"where\['fc'\]: expected a covariance"):
        tacit.variational(net(), where)


def test_keys_that_are_not_names_are_refused():
    with pytest.raises(TypeError, match="where: expected the name of a layer, received 0"):
        tacit.variational(net(), {0: LowRank(3)})


@pytest.mark.parametrize("where", [3, [1, 2], LowRank(3)])
def test_selections_of_another_type_are_refused(where):
    with pytest.raises(TypeError, match="where: expected a dict from layer names"):
        tacit.variational(net(), where)


def test_a_covariance_without_layers_is_refused_with_the_dict_for_all_layers():
    with pytest.raises(TypeError, match=re.escape('For all layers pass {"*": LowRank(rank=3')):
        tacit.variational(net(), LowRank(3))
    tacit.variational(net(), {"*": LowRank(3)})


def test_rank_with_a_dict_is_refused():
    with pytest.raises(ValueError, match="rank= applies only to a list"):
        tacit.variational(net(), {"fc": LowRank(3)}, rank=4)


def test_a_module_without_parameters_is_refused():
    with pytest.raises(ValueError, match="ReLU has no parameters"):
        tacit.variational(nn.ReLU())


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64])
def test_parameters_that_are_not_real_floating_point_are_refused(dtype):
    module = nn.Module()
    module.table = nn.Parameter(torch.ones(3, dtype=dtype), requires_grad=False)
    with pytest.raises(ValueError, match=f"'table' has dtype {dtype}: only real floating"):
        tacit.variational(module)


def test_layers_that_stay_deterministic_may_have_any_dtype():
    module = nn.Module()
    module.table = nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
    module.fc = nn.Linear(3, 2)
    assert list(tacit.variational(module).distributions) == ["fc"]


def test_meta_and_lazy_modules_are_refused():
    with pytest.raises(ValueError, match="'weight' is on the meta device"):
        tacit.variational(nn.Linear(3, 2, device="meta"))
    with pytest.raises(ValueError, match="'weight' is not initialized yet"):
        tacit.variational(nn.LazyLinear(2))


def test_a_name_with_a_bracket_is_no_glob():
    module = nn.ModuleDict({"a[0]": nn.Linear(4, 4), "a0": nn.Linear(4, 4), "b?": nn.Sequential()})
    module["b?"].append(nn.Linear(2, 2))
    assert list(chosen(module, None)) == ["a0", "b?.0"]
    assert list(chosen(module, ["a[0]"], rank=2)) == ["a[0]"]
    assert list(chosen(module, ["a[0].weight"], rank=2)) == ["a[0].weight"]
    assert list(chosen(module, ["[a]?"], rank=2)) == ["a0"]
    both = chosen(module, {"a[0]": LowRank(1), "a*": LowRank(2)})
    assert both == {"a[0]": LowRank(1), "a0": LowRank(2)}
    with pytest.raises(ValueError, match=re.escape("for layers inside it write 'b[?].*'")):
        chosen(module, ["b?"])
    assert list(chosen(module, ["b[?].*"], rank=2)) == ["b?.0"]


@pytest.mark.parametrize("recipe", [tacit.every_layer, tacit.first_and_last])
def test_recipes_expect_a_module(recipe):
    with pytest.raises(TypeError, match="expected an nn.Module, received None"):
        recipe(None)


def test_a_rank_is_an_integer():
    with pytest.raises(TypeError, match="expected an integer of at least 1, received '3'"):
        tacit.variational(nn.Linear(2, 2), rank="3")


def test_numpy_scalars_become_python_numbers():
    settings = [
        LowRank(np.int64(2), np.float32(0.5)),
        tacit.Kronecker(np.int64(2), np.int32(1), np.float64(0.5)),
        tacit.LowRankPlusDiagonal(np.int64(2), np.float32(0.5)),
        tacit.Diagonal(np.float32(0.5)),
        FullRank(np.float32(0.5), np.float64(2)),
        tacit.noise.StudentT(np.float64(5)),
        *tacit.every_layer(nn.Linear(2, 2), np.int64(2), np.float32(0.5)).values(),
    ]
    for setting in settings:
        assert {type(value) for value in vars(setting).values()} <= {int, float}, setting
    model = tacit.variational(nn.Linear(2, 2), rank=np.int64(2), draws=np.int64(3))
    assert type(model.draws) is int
