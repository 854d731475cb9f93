"""model(x): train mode, eval mode, samples, and which arguments are refused."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import tacit
from nets import generator, mlp
from tacit import LowRank

X = torch.linspace(-1, 1, 24).reshape(6, 4)


@pytest.fixture
def model():
    return tacit.variational(mlp(4, 8, 3), {"0": LowRank(3), "3": LowRank(2)})


class TestModes:
    def test_train_mode_draws_new_weights_in_each_call(self, model):
        first, second = model(X), model(X)
        assert first.shape == (6, 3)
        assert not torch.equal(first, second)

    def test_train_mode_applies_one_function_to_the_whole_batch(self, model):
        row = X[:1].repeat(5, 1)
        output = model(row)
        assert torch.equal(output, output[:1].expand(5, 3))

    def test_eval_mode_equals_the_module_exactly(self, model):
        model.eval()
        assert torch.equal(model(X), model.module(X))
        assert torch.equal(model(X), model(X))

    @pytest.mark.parametrize("training", [True, False])
    def test_samples_are_the_leading_dimension_and_differ_in_either_mode(self, model, training):
        output = model.train(training)(X, samples=8)
        assert output.shape == (8, 6, 3)
        assert len({tuple(row.flatten().tolist()) for row in output}) == 8

    def test_one_sample_keeps_the_leading_dimension(self, model):
        assert model(X, samples=1).shape == (1, 6, 3)

    @pytest.mark.parametrize("kwargs", [{}, {"samples": 3}, {"draws": 2}])
    def test_a_seeded_generator_makes_calls_reproducible(self, model, kwargs):
        first, second, other = (model(X, generator=generator(s), **kwargs) for s in (5, 5, 6))
        assert torch.equal(first, second)
        assert not torch.equal(first, other)

    def test_samples_of_a_linear_model_average_to_its_mean(self):
        model = tacit.variational(nn.Linear(4, 2).double())
        n = 20_000
        output = model(X.double(), samples=n, generator=generator())
        error = output.std(0) / n**0.5
        assert ((output.mean(0) - model.module(X.double())).abs() < 5 * error).all()

    def test_with_zero_factors_the_model_is_the_plain_network(self, model):
        for factor in model.factors.parameters():
            nn.init.zeros_(factor)
        assert torch.equal(model(X), model.module(X))
        assert_close(model(X, samples=2), model.module(X).expand(2, 6, 3))

    @pytest.mark.parametrize(
        "noise", [tacit.noise.Laplace(), tacit.noise.StudentT(5)], ids=["laplace", "student"]
    )
    def test_weights_are_drawn_with_the_given_noise(self, noise):
        model = tacit.variational(mlp(4, 8, 3), noise=noise)
        gaussian = copy.deepcopy(model)
        gaussian.noise = tacit.noise.Gaussian()
        same, other = (m(X, samples=2, generator=generator()) for m in (model, gaussian))
        assert not torch.equal(same, other)
        assert torch.equal(same, model(X, samples=2, generator=generator()))


class TestBadInput:
    @pytest.mark.parametrize("count", [0, -1])
    @pytest.mark.parametrize("name", ["samples", "draws"])
    def test_counts_below_one_are_refused(self, model, name, count):
        with pytest.raises(ValueError, match=f"{name}: expected an integer of at least 1"):
            model(X, **{name: count})

    @pytest.mark.parametrize("count", [2.5, True, "3"])
    @pytest.mark.parametrize("name", ["samples", "draws"])
    def test_counts_that_are_not_integers_are_refused(self, model, name, count):
        with pytest.raises(TypeError, match=f"{name}: expected an integer of at least 1"):
            model(X, **{name: count})

    def test_chunk_size_must_be_positive_and_come_with_samples_or_weights(self, model):
        with pytest.raises(ValueError, match="chunk_size: expected an integer of at least 1"):
            model(X, samples=2, chunk_size=0)
        with pytest.raises(ValueError, match="chunk_size applies only to samples or weights"):
            model(X, chunk_size=2)

    @pytest.mark.parametrize(
        "kwargs",
        [{"samples": 2, "draws": 2}, {"samples": 2, "weights": {}}, {"draws": 2, "weights": {}}],
    )
    def test_samples_draws_and_weights_exclude_each_other(self, model, kwargs):
        with pytest.raises(ValueError, match=r"\w+ and \w+ exclude each other: choose one"):
            model(X, **kwargs)

    @pytest.mark.parametrize("bad", [0, "seed", torch.randn])
    def test_a_generator_of_another_type_is_refused(self, model, bad):
        with pytest.raises(TypeError, match="generator: expected a torch.Generator"):
            model(X, generator=bad)

    @pytest.mark.parametrize(
        "other", [nn.Linear(8, 5), nn.Linear(8, 3, bias=False)], ids=["wider", "without bias"]
    )
    def test_a_random_layer_replaced_after_wrapping_is_refused(self, model, other):
        model.module[3] = other
        with pytest.raises(RuntimeError, match="layer '3' is not the one that was made"):
            model(X)


def test_numpy_scalars_are_accepted_as_numbers(model):
    two = np.int64(2)
    assert model(X, samples=two).shape == (2, 6, 3)
    assert model(X, draws=two).shape == (6, 3)
    assert model.param_groups(lr=np.float32(0.5))[0]["lr"] == 0.5
    assert model.sample([two, 3])["3.bias"].shape == (2, 3, 3)


def test_activation_checkpointing_of_the_whole_model_keeps_the_gradients(model):
    gradients = []
    for forward in (model, partial(checkpoint, model, use_reentrant=False)):
        torch.manual_seed(0)
        model.zero_grad()
        forward(X).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert_close(plain, checkpointed)
