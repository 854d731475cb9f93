import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.weights import distribution
from tacit.weights.distribution import draw_noise_per_example


def test_a_distribution_holds_the_trained_tensors_themselves():
    model = tacit.variational(nn.Linear(3, 2), {"": tacit.LowRank(2)})
    distribution = model.distributions[""]
    assert distribution.mean["weight"] is model.module.weight
    assert distribution.factors["bias"] is model.factors.bias
    assert distribution.shapes == {"weight": (2, 3), "bias": (2,)}


def test_dense_mean_covariance_and_trace_agree_with_the_factors():
    model = tacit.variational(nn.Linear(3, 2).double(), {"": tacit.LowRank(2)})
    distribution = model.distributions[""]
    mean = torch.cat([model.module.weight.flatten(), model.module.bias])
    assert torch.equal(distribution.dense_mean(), mean)
    S = torch.cat([model.factors.weight.flatten(1), model.factors.bias], dim=1).T
    assert_close(distribution.dense_covariance(), S @ S.T)
    assert_close(distribution.trace(), (S @ S.T).trace())


def test_weights_are_mean_plus_factor_times_noise():
    model = tacit.variational(nn.Linear(3, 2).double(), {"": tacit.LowRank(2)})
    distribution = model.distributions[""]
    z = distribution.draw_noise((5,), generator=torch.Generator().manual_seed(0))
    assert z.shape == (5, 2)
    for m, weight in enumerate(distribution.weights(z)["weight"]):
        z0, z1 = z[m]
        by_hand = model.module.weight + z0 * model.factors.weight[0] + z1 * model.factors.weight[1]
        assert_close(weight, by_hand)


def example_noise(model, size, generator=None):
    drawn = draw_noise_per_example(model.distributions, size, generator)
    return {label: noise.z for label, noise in drawn.items()}


@pytest.fixture
def shared(monkeypatch):
    """Share random numbers however few are drawn."""
    monkeypatch.setattr(distribution, "SHARED", 0)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 40])
def test_examples_share_numbers_but_not_for_the_same_component(size):
    model = tacit.variational(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)))
    noise = example_noise(model, size)
    assert {label: z.shape for label, z in noise.items()} == {"1": (size, 4), "2": (size, 5)}
    z = torch.cat(list(noise.values()), dim=1)
    for part in (*z, *z.T):  # components of an example, a component of all examples
        assert len(part.unique()) == len(part)
    if size <= 8:
        assert len(z.unique()) == z.numel()
    else:
        assert len(z.abs().unique()) < 10 * 9 + size


@pytest.mark.usefixtures("shared")
def test_noise_of_examples_is_uncorrelated():
    model = tacit.variational(nn.Linear(64, 2))
    batches = [example_noise(model, 128)[""] for _ in range(200)]
    z = torch.stack(batches)  # (batches, examples, units)
    products = torch.einsum("bik,bjk->ij", z, z) / (200 * 64)
    error = (200 * 64) ** -0.5
    assert (products - torch.eye(128)).abs().max() < 6 * error


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("noise", [tacit.noise.Gaussian(), tacit.noise.Laplace()])
def test_sums_of_noise_are_uncorrelated_between_examples(noise):
    model = tacit.variational(nn.Linear(64, 2), noise=noise)
    batches = [example_noise(model, 128)[""] for _ in range(400)]
    sums = torch.stack(batches).sum(-1) / 8  # (batches, examples), variance 1
    # Windows of one row give neighbours a correlation of 15/16, and the mean a variance of 15/128.
    assert abs(float((sums[:, 1:] * sums[:, :-1]).mean())) < 0.05
    assert 0.7 / 128 < float(sums.mean(1).var()) < 1.4 / 128


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("covariance", [tacit.Relative(0.4), tacit.RankOneSum(3)])
def test_signs_of_columns_are_those_of_the_noise(covariance):
    model = tacit.variational(nn.Linear(16, 5).double(), {"": covariance})
    distribution = model.distributions[""]
    noise = draw_noise_per_example(model.distributions, 40, None)[""]
    assert noise.signs is not None
    found = distribution.in_activation_space(noise.rows, noise.signs)["weight"]
    expected = distribution.in_activation_space(noise.z)["weight"]
    part = "factor" if isinstance(covariance, tacit.Relative) else "z"
    assert_close(getattr(found, part), getattr(expected, part), rtol=0, atol=0)
    assert_close(noise[3], noise.z[3], rtol=0, atol=0)


class Skewed(tacit.noise.Noise):
    def sample(self, shape, *, like, generator=None):
        uniform = torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)
        return -torch.log1p(-uniform) - 1


def test_noise_of_examples_that_is_not_symmetric_keeps_its_distribution():
    model = tacit.variational(nn.Linear(64, 2), noise=Skewed())
    noise = example_noise(model, 5000)[""]
    assert float((noise**3).mean()) == pytest.approx(2, abs=0.2)
    assert len(noise.unique()) > 0.9 * noise.numel()


def test_noise_for_each_example_has_the_distribution_of_the_family():
    model = tacit.variational(nn.Linear(3, 2), noise=tacit.noise.Laplace())
    noise = example_noise(model, 200_000, torch.Generator().manual_seed(0))
    assert_close(noise[""].square().mean(0), torch.ones(3), atol=0.03, rtol=0)
    assert_close((noise[""] ** 4).mean(0), torch.full((3,), 6.0), atol=0.5, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_sampled_convolutions_have_the_memory_format_of_their_mean(channels):
    layer = nn.Conv2d(channels, 4, 3)
    layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)
    model = tacit.variational(layer, {"": tacit.LowRank(2)})
    weight = model.sample()["weight"]
    assert weight.stride() == layer.weight.stride()
    output = model(torch.randn(2, channels, 8, 8))
    assert output.is_contiguous(memory_format=torch.channels_last)
    plain = nn.Conv2d(channels, 4, 3)
    plain.load_state_dict({"weight": weight.detach().contiguous(), "bias": layer.bias.detach()})
    x = torch.randn(2, channels, 8, 8)
    expected = plain(x)
    got = torch.nn.functional.conv2d(x, weight, layer.bias)
    assert_close(got, expected)
    got.square().sum().backward()
    expected.square().sum().backward()
    assert_close(layer.weight.grad, plain.weight.grad)
