"""tacit.variational: what it adds to a module, and which arguments it refuses."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from nets import generator, mlp
from tacit import Diagonal, LowRank
from tacit.calling import Variational


@pytest.fixture
def model():
    return tacit.variational(mlp(4, 8, 3), {"0": LowRank(3), "3": LowRank(2)})


def test_the_result_is_a_variational_model():
    assert isinstance(tacit.variational(nn.Linear(2, 2)), Variational)


def test_the_module_is_wrapped_without_a_copy_or_a_change():
    net = mlp(4, 8, 3)
    before = copy.deepcopy(net.state_dict())
    model = tacit.variational(net)
    assert model.module is net
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


class TestFactors:
    def test_the_generator_determines_them(self):
        first, second, other = (
            tacit.variational(mlp(4, 8, 3), rank=3, generator=generator(seed)).factors.state_dict()
            for seed in (0, 0, 1)
        )
        assert all(torch.equal(first[key], second[key]) for key in first)
        assert not any(torch.equal(first[key], other[key]) for key in first)

    def test_they_have_the_dtype_of_the_module(self):
        model = tacit.variational(mlp(4, 8, 3).double())
        assert {factor.dtype for factor in model.factors.parameters()} == {torch.float64}

    def test_the_scale_of_a_bias_does_not_depend_on_how_it_is_selected(self):
        for where in ({"": Diagonal()}, {"weight": Diagonal(), "bias": Diagonal()}):
            model = tacit.variational(nn.Linear(100, 4), where)
            assert_close(model.factors.bias, torch.full((4,), 0.1))

    def test_scale_multiplies_the_initial_standard_deviation(self):
        model = tacit.variational(nn.Linear(100, 4), {"": Diagonal(scale=0.5)})
        assert_close(model.factors.weight, torch.full((4, 100), 0.05))


class TestBadInput:
    def test_a_string_is_not_a_module(self):
        with pytest.raises(TypeError, match="expected an nn.Module, received 'net'"):
            tacit.variational("net")

    @pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
    @pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
    def test_a_scripted_module_or_random_layer_is_refused(self):
        plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        scripted = torch.jit.script(plain)
        for module in (scripted, torch.jit.trace(plain, torch.ones(1, 2))):
            with pytest.raises(TypeError, match="the module is scripted.*wrap the original module"):
                tacit.variational(module)
        net = nn.Sequential(scripted, nn.Linear(2, 2))
        with pytest.raises(TypeError, match="the layer '0.1' is scripted"):
            tacit.variational(net, ["0.1"], rank=2)
        assert tacit.variational(net, ["1"], rank=2)(torch.ones(3, 2)).shape == (3, 2)

    def test_a_variational_module_is_refused_also_as_a_submodule(self, model):
        for module in (model, nn.Sequential(model, nn.Linear(3, 2))):
            with pytest.raises(TypeError, match="already variational or contains a variational"):
                tacit.variational(module)

    @pytest.mark.parametrize("name", ["samples", "draws", "weights", "chunk_size", "generator"])
    def test_a_forward_with_a_reserved_argument_is_refused(self, name):
        namespace = {}
        exec(f"def forward(self, x, {name}=None): return self.linear(x)", namespace)
        module = type("Clash", (nn.Module,), {"forward": namespace["forward"]})()
        module.linear = nn.Linear(4, 3)
        with pytest.raises(ValueError, match=f"Clash.forward has an argument named {name}, which"):
            tacit.variational(module)

    @pytest.mark.parametrize("noise", ["gaussian", torch.randn, tacit.noise.Gaussian])
    def test_noise_of_another_type_is_refused(self, noise):
        with pytest.raises(TypeError, match=r"noise: expected one of tacit\.noise"):
            tacit.variational(mlp(4, 3), noise=noise)

    def test_a_default_of_zero_draws_is_refused(self):
        with pytest.raises(ValueError, match="draws: expected an integer of at least 1"):
            tacit.variational(mlp(4, 3), draws=0)

    @pytest.mark.parametrize("bad", [0, "seed", torch.randn])
    def test_a_generator_of_another_type_is_refused(self, bad):
        with pytest.raises(TypeError, match="generator: expected a torch.Generator"):
            tacit.variational(mlp(4, 3), generator=bad)

    def test_activation_checkpointing_inside_the_module_is_refused(self):
        net = mlp(4, 3)
        net.is_gradient_checkpointing = True  # as Hugging Face models set it
        with pytest.raises(ValueError, match="would recompute with the mean weights"):
            tacit.variational(net, tacit.every_layer)
        tacit.variational(net)  # noise in activation space is given to it again
