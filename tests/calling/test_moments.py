"""Closed-form output moments against samples, and the losses computed from them."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import tacit
from tacit.calling.moments import cross_entropy_bound, expected_squared_error, output_moments

STRUCTURES = {
    "low rank": tacit.LowRank(3),
    "full rank": tacit.FullRank(),
    "diagonal": tacit.Diagonal(),
    "low rank plus diagonal": tacit.LowRankPlusDiagonal(2),
    "kronecker": tacit.Kronecker(2, 2),
}
X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def make_model(where):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    return tacit.variational(net, where)


def errors(draws):
    """Return mean and variance over the first dimension, and the standard errors of both."""
    M = len(draws)
    centred = draws - draws.mean(0)
    fourth = centred.pow(4).mean(0)
    variance = draws.var(0)
    error = ((fourth - variance.square()).clamp_min(0) / M).sqrt()
    return draws.mean(0), variance, (variance / M).sqrt(), error


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", STRUCTURES)
def test_moments_agree_with_those_of_samples(name, bias):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3, bias=bias)).double()
    model = tacit.variational(net, {"2": STRUCTURES[name]}).eval()
    with torch.no_grad():
        mean, variance = output_moments(model, X)
        draws = model(X, samples=40_000)
    found, spread, mean_error, variance_error = errors(draws)
    assert_close(mean, model(X))
    assert ((found - mean).abs() <= 5 * mean_error).all()
    assert ((spread - variance).abs() <= 5 * variance_error).all()


@pytest.mark.parametrize("where", [{"2.weight": tacit.Diagonal()}, {"2.bias": tacit.LowRank(2)}])
def test_a_single_tensor_of_the_layer_may_be_random(where):
    model = make_model(where).eval()
    with torch.no_grad():
        _, variance = output_moments(model, X)
        _, spread, _, error = errors(model(X, samples=40_000))
    assert variance.shape == (6, 3)
    assert ((spread - variance).abs() <= 5 * error).all()


def test_variances_of_independent_weight_and_bias_add_up():
    parts = {"2.weight": tacit.Diagonal(), "2.bias": tacit.Diagonal()}
    both = output_moments(make_model(parts).eval(), X)[1]
    assert_close(both, output_moments(make_model({"2": tacit.Diagonal()}).eval(), X)[1])


@pytest.mark.parametrize("name", STRUCTURES)
def test_expected_squared_error_is_exact(name):
    model = make_model({"2": STRUCTURES[name]}).eval()
    target = torch.randn(6, 3, dtype=torch.float64)
    exact = expected_squared_error(*output_moments(model, X), target)
    draws = model(X, samples=40_000)
    losses = (draws - target).square().mean((1, 2))
    assert abs(losses.mean() - exact) < 5 * losses.std() / math.sqrt(len(losses))


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_cross_entropy_bound_holds_and_is_tight_without_variance(name):
    model = make_model({"2": STRUCTURES[name]}).eval()
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    mean, variance = output_moments(model, X)
    bound = cross_entropy_bound(mean, variance, labels)
    with torch.no_grad():
        draws = model(X, samples=20_000)
        log_probs = F.log_softmax(draws, -1)
    losses = -log_probs[:, torch.arange(6), labels].mean(1)
    assert losses.mean() < bound + 5 * losses.std() / math.sqrt(len(losses))
    tight = cross_entropy_bound(mean, torch.zeros_like(variance), labels)
    assert_close(tight, F.cross_entropy(mean, labels))


def test_the_exact_gradient_has_less_noise_than_a_sampled_one():
    model = make_model({"0": tacit.LowRank(2), "2": tacit.LowRank(3)}).train()
    target = torch.randn(6, 3, dtype=torch.float64)
    spread = {}
    for name, loss in {
        "exact": lambda: expected_squared_error(*output_moments(model, X), target),
        "sampled": lambda: F.mse_loss(model(X), target),
    }.items():
        torch.manual_seed(0)
        gradients = [torch.autograd.grad(loss(), [model.module[2].weight])[0] for _ in range(500)]
        spread[name] = torch.stack(gradients).var(0).sum()
        mean = torch.stack(gradients).mean(0)
        if name == "exact":
            expected = mean
    assert spread["exact"] < 0.5 * spread["sampled"]
    assert (mean - expected).norm() < 5 * ((spread["exact"] + spread["sampled"]) / 500).sqrt()


def test_a_single_linear_layer_accepts_any_leading_shape():
    torch.manual_seed(0)
    model = tacit.variational(nn.Linear(4, 3), {"": tacit.LowRank(2)})
    mean, variance = output_moments(model, torch.randn(2, 5, 4))
    assert mean.shape == variance.shape == (2, 5, 3)


def test_the_output_must_be_that_of_a_random_linear_layer():
    model = make_model({"0": tacit.LowRank(2)})
    with pytest.raises(ValueError, match="unmodified output of its last random layer, '0'"):
        output_moments(model, X)
    assert not model.module[0]._forward_hooks
    model = tacit.variational(nn.Conv2d(1, 2, 3), {"": tacit.LowRank(2)})
    with pytest.raises(ValueError, match="expected a random nn.Linear as the last layer"):
        output_moments(model, torch.randn(1, 1, 5, 5))


def test_targets_that_would_broadcast_are_refused():
    mean = torch.zeros(4, 1)
    for arguments in ((mean, mean, torch.zeros(4)), (mean, mean[:1], mean)):
        with pytest.raises(ValueError, match="expected mean, variance and targets of the same"):
            expected_squared_error(*arguments)
    logits = torch.zeros(2, 3, 5)
    with pytest.raises(ValueError, match="classes of shape"):
        cross_entropy_bound(logits, logits, torch.zeros(2, dtype=torch.long))


def test_the_bound_has_its_second_order_expansion_also_for_sequences():
    """The cross-entropy plus sum_c p_c variance_c / 2, with the probabilities p_c."""
    mean, labels = torch.randn(2, 3, 5).double(), torch.randint(5, (2, 3))
    variance = 1e-4 * torch.rand(2, 3, 5).double()
    plain = F.cross_entropy(mean.flatten(0, 1), labels.flatten())
    correction = (mean.softmax(-1) * variance / 2).sum(-1).mean()
    bound = cross_entropy_bound(mean, variance, labels)
    assert_close(bound, plain + correction, rtol=0, atol=1e-8)


def test_outputs_that_are_not_gaussian_or_not_linear_in_the_weights_are_refused():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(x).mul_(10)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            return self.head(self.embedding(x))

    for module, x, match in (
        (InPlace(), torch.ones(2, 4), "unmodified output of its last random layer"),
        (Tied(), torch.arange(5), "is tied and used elsewhere in the model"),
    ):
        model = tacit.variational(module, {"head": tacit.LowRank(2)})
        with pytest.raises(ValueError, match=match):
            output_moments(model, x)
    noisy = tacit.variational(nn.Linear(4, 3), {"": tacit.LowRank(2)}, noise=tacit.noise.Laplace())
    with pytest.raises(ValueError, match="expected Gaussian noise"):
        output_moments(noisy, torch.ones(2, 4))
    with pytest.raises(TypeError, match="expected a variational model, received Linear"):
        output_moments(nn.Linear(4, 3), torch.ones(2, 4))


def test_in_place_changes_are_detected_in_inference_mode():
    """Tensors have no version counter there."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    x = torch.randn(5, 4)
    for module in (net, nn.Sequential(*net, nn.ReLU(inplace=True))):
        model = tacit.variational(module, {"1": tacit.LowRank(2)}).eval()
        with torch.inference_mode():
            if module is net:
                assert_close(output_moments(model, x)[0], net(x))
            else:
                with pytest.raises(ValueError, match="no activation"):
                    output_moments(model, x)
