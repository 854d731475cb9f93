"""model.sample(), and calls with sampled weights."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from nets import generator, mlp
from tacit import Diagonal, FullRank, Kronecker, LowRank, LowRankPlusDiagonal

X = torch.linspace(-1, 1, 24).reshape(6, 4)


@pytest.fixture
def model():
    return tacit.variational(mlp(4, 8, 3), {"0": LowRank(3), "3": LowRank(2)})


def test_a_sample_has_the_names_and_shapes_of_the_random_parameters(model):
    for shape, leading in ((5, (5,)), ((2, 3), (2, 3)), ((), ())):
        sample = model.sample(shape)
        assert {name: tuple(t.shape) for name, t in sample.items()} == {
            "0.weight": (*leading, 8, 4),
            "0.bias": (*leading, 8),
            "3.weight": (*leading, 3, 8),
            "3.bias": (*leading, 3),
        }


def test_sampled_weights_are_the_same_functions_on_other_inputs(model):
    weights = model.sample(5)
    together = model(X, weights=weights)
    assert together.shape == (5, 6, 3)
    assert torch.equal(together, model(X, weights=weights))
    assert_close(model(X[:2], weights=weights), together[:, :2])


def test_samples_use_the_weights_that_sample_draws_with_the_same_generator(model):
    weights = model.sample(4, generator=generator(3))
    assert_close(model(X, weights=weights), model(X, samples=4, generator=generator(3)))


def test_the_sample_shape_leads_in_the_output(model):
    weights = model.sample((2, 3))
    grid = model(X, weights=weights)
    assert grid.shape == (2, 3, 6, 3)
    one = {name: tensor[1, 2] for name, tensor in weights.items()}
    assert_close(model(X, weights=one), grid[1, 2])


def test_layers_of_one_model_may_have_different_covariances():
    where = {
        "0": LowRank(2),
        "3": Diagonal(),
        "6": Kronecker(2, 3),
        "9": LowRankPlusDiagonal(2),
        "12": FullRank(),
    }
    model = tacit.variational(mlp(4, 5, 5, 5, 5, 2), where)
    assert model(X, samples=3).shape == (3, 6, 2)
    assert model(X, draws=4).shape == (6, 2)


def test_the_standard_deviation_of_a_weight_does_not_depend_on_the_rank():
    for rank in (1, 4, 16, 64):
        model = tacit.variational(nn.Linear(100, 50), {"": LowRank(rank)}, generator=generator())
        variance = model.sample(400)["weight"].var(0).mean()
        assert 0.008 < variance < 0.012, (rank, variance)  # 1 / fan_in = 0.01


class TestBadInput:
    def test_sample_shapes_with_a_zero_are_refused(self, model):
        with pytest.raises(ValueError, match="sample: expected an integer of at least 1"):
            model.sample((2, 0))

    @pytest.mark.parametrize("bad", [0, "seed", torch.randn])
    def test_a_generator_of_another_type_is_refused(self, model, bad):
        with pytest.raises(TypeError, match="generator: expected a torch.Generator"):
            model.sample(generator=bad)

    def test_weights_of_another_model_are_refused(self, model):
        other = tacit.variational(mlp(4, 8, 3), {"0": LowRank(1)})
        with pytest.raises(ValueError, match=r"expected a sample of this model.*3\.bias; received"):
            model(X, weights=other.sample(2))
        wider = tacit.variational(mlp(4, 9, 3), {"0": LowRank(3), "3": LowRank(2)})
        with pytest.raises(
            ValueError, match=r"'0.weight' of shape \(2, 8, 4\), received \(2, 9, 4\)"
        ):
            model(X, weights=wider.sample(2))

    def test_weights_must_be_a_mapping(self, model):
        with pytest.raises(ValueError, match="expected a sample of this model.*received Tensor"):
            model(X, weights=torch.ones(3))

    def test_weights_and_a_generator_exclude_each_other(self, model):
        with pytest.raises(ValueError, match="weights and generator exclude each other"):
            model(X, weights=model.sample(), generator=generator())

    def test_weights_with_different_sample_shapes_are_refused(self, model):
        weights = {**model.sample(2), "3.bias": model.sample(3)["3.bias"]}
        with pytest.raises(ValueError, match=r"'3.bias' of shape \(2, 3\), received \(3, 3\)"):
            model(X, weights=weights)
