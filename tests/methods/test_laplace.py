"""The last-layer Gaussian against closed forms and dense matrices."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import tacit
from tacit.data.batches import Batches
from tacit.methods import Laplace, Task, TemperatureScaling
from tacit.methods.laplace import LastLayer, output_layer


def features(size=40, inputs=3):
    return torch.randn(size, inputs, dtype=torch.float64)


def with_one(phi):
    return torch.cat([phi, torch.ones_like(phi[:, :1])], -1)


def fitted(layer, likelihood, x, y, precision, **settings):
    predictor = LastLayer(layer, likelihood, "", **settings)
    predictor.fit_curvature(Batches("data", (x, y), 7))
    predictor.set_precision(precision)
    return predictor


class TestLinearRegression:
    """The posterior is Gaussian and the curvature constant, so the approximation is exact."""

    scale, precision = 0.3, 2.0

    def setup(self):
        x, layer = features(), nn.Linear(3, 2).double()
        likelihood = tacit.Gaussian(self.scale, learn=False).double()
        y = layer(x).detach() + self.scale * torch.randn(40, 2, dtype=torch.float64)
        return x, y, layer, likelihood

    def covariance(self, x):
        phi = with_one(x)
        return torch.linalg.inv(
            phi.T @ phi / self.scale**2 + self.precision * torch.eye(4, dtype=torch.float64)
        )

    def test_variances_match_the_exact_posterior(self):
        x, y, layer, likelihood = self.setup()
        predictor = fitted(layer, likelihood, x, y, self.precision)
        phi = with_one(features(5))
        expected = (phi @ self.covariance(x) * phi).sum(-1)
        assert_close(predictor.variances(phi), expected[:, None].expand(5, 2))

    def test_draws_have_the_covariance_of_the_exact_posterior(self):
        x, y, layer, likelihood = self.setup()
        predictor = fitted(layer, likelihood, x, y, self.precision)
        generator = torch.Generator().manual_seed(0)
        drawn = predictor.deviations(40_000, generator)[..., 0]  # (M, 4), for one output
        expected = self.covariance(x)
        found = drawn.T @ drawn / len(drawn)
        error = (expected.diag().outer(expected.diag()) + expected.square()).sqrt() / 200
        assert ((found - expected).abs() < 5 * error).all()

    def test_log_evidence_matches_the_exact_marginal_likelihood(self):
        """At the posterior mean the approximation is exact."""
        x = features()
        phi, tau, sigma = with_one(x), self.precision, self.scale
        y = torch.randn(40, 1, dtype=torch.float64)
        mean = self.covariance(x) @ phi.T @ y / sigma**2
        layer = nn.Linear(3, 1).double()
        with torch.no_grad():
            layer.weight.copy_(mean[:3].T)
            layer.bias.copy_(mean[3])
        likelihood = tacit.Gaussian(sigma, learn=False).double()
        predictor = LastLayer(layer, likelihood, "")
        found = predictor.fit_curvature(Batches("data", (x, y), 9)) + predictor.log_evidence(tau)
        marginal = phi @ phi.T / tau + sigma**2 * torch.eye(40, dtype=torch.float64)
        exact = torch.distributions.MultivariateNormal(torch.zeros(40).double(), marginal)
        assert found == pytest.approx(exact.log_prob(y[:, 0]).item(), rel=1e-6)


def dense_hessian(layer, x, y):
    """Return the Hessian of the summed cross-entropy in the layer's weights, inputs first."""

    def loss(weights):
        return F.cross_entropy(with_one(x) @ weights, y, reduction="sum")

    weights = torch.cat([layer.weight.T, layer.bias[None]]).detach()
    size = weights.numel()
    return torch.autograd.functional.hessian(loss, weights).reshape(size, size)


class TestLogisticRegression:
    def test_variances_for_one_example_match_the_dense_hessian(self):
        """For one example the Hessian is a Kronecker product, so KFAC is exact."""
        x, y, layer = features(1), torch.tensor([1]), nn.Linear(3, 4).double()
        predictor = fitted(layer, tacit.Categorical(), x, y, 0.7)
        hessian = dense_hessian(layer, x, y)
        covariance = torch.linalg.inv(hessian + 0.7 * torch.eye(16, dtype=torch.float64))
        phi = with_one(features(6))
        # Outputs are (phi x I) w.
        jacobian = torch.einsum("bi,cd->bcid", phi, torch.eye(4).double()).reshape(6, 4, 16)
        expected = torch.einsum("bci,ij,bcj->bc", jacobian, covariance, jacobian)
        assert_close(predictor.variances(phi), expected)

    def test_variances_for_equal_probabilities_match_the_dense_hessian(self):
        """With the same curvature at every example, KFAC is exact as well."""
        x, y = features(30), torch.arange(30) % 4
        layer = nn.Linear(3, 4).double()
        nn.init.zeros_(layer.weight)
        predictor = fitted(layer, tacit.Categorical(), x, y, 0.7)
        covariance = torch.linalg.inv(
            dense_hessian(layer, x, y) + 0.7 * torch.eye(16, dtype=torch.float64)
        )
        phi = with_one(features(6))
        jacobian = torch.einsum("bi,cd->bcid", phi, torch.eye(4).double()).reshape(6, 4, 16)
        expected = torch.einsum("bci,ij,bcj->bc", jacobian, covariance, jacobian)
        assert_close(predictor.variances(phi), expected)

    def test_probit_scales_logits_by_their_variance(self):
        x, y, layer = features(), torch.arange(40) % 4, nn.Linear(3, 4).double()
        predictor = fitted(layer, tacit.Categorical(), x, y, 0.5)
        phi = with_one(x)
        expected = layer(x) / (1 + math.pi / 8 * predictor.variances(phi)).sqrt()
        functions = predictor.functions(samples=1, chunk_size=None, generator=None)
        assert_close(functions(x)[0], expected)

    def test_lower_prior_precision_lowers_confidence(self):
        x, y, layer = features(), torch.arange(40) % 4, nn.Linear(3, 4).double()
        predictor = fitted(layer, tacit.Categorical(), x, y, 1.0)
        entropies = []
        for precision in (1e-3, 1.0, 1e3, 1e9):
            predictor.set_precision(precision)
            entropies.append(tacit.predict(predictor, 5 * x).entropy.mean().item())
        assert entropies == sorted(entropies, reverse=True)
        plain = tacit.predict(layer, 5 * x, likelihood=tacit.Categorical()).entropy.mean().item()
        assert entropies[-1] == pytest.approx(plain, rel=1e-4)


def test_three_thousand_classes_fit_in_memory():
    layer = nn.Linear(64, 3000)
    x, y = torch.randn(100, 64), torch.randint(3000, (100,))
    predictor = LastLayer(layer, tacit.Categorical(), "")
    predictor.fit_curvature(Batches("data", (x, y), 50))
    found = tacit.predict(predictor, x)
    assert found.probs.shape == (100, 3000)
    assert found.probs.isfinite().all()


def test_samples_agree_with_probit():
    """For one logit the probit approximation is accurate."""
    x = features(200)
    y = (torch.arange(200) % 2).double()[:, None]
    layer = nn.Linear(3, 1).double()
    probit, drawn = (
        fitted(layer, tacit.Bernoulli(averaging="probs"), x, y, 1.0, probit=choice)
        for choice in (True, False)
    )
    a = tacit.predict(probit, x).probs
    b = tacit.predict(drawn, x, samples=4000, generator=torch.Generator().manual_seed(0)).probs
    assert (a - b).abs().max() < 0.01


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="expected tune 'grid' or 'marglik'"):
        tacit.methods.Laplace("guess")
    with pytest.raises(ValueError, match="the network has no linear layer '1'"):
        LastLayer(nn.Sequential(nn.Linear(2, 2), nn.Flatten()), tacit.Categorical(), "1")
    with pytest.raises(TypeError, match="Laplace: no curvature for HeteroscedasticGaussian"):
        fitted(nn.Linear(3, 2).double(), tacit.HeteroscedasticGaussian(), features(),
               torch.randn(40, 1).double(), 1.0)  # fmt: skip
    with pytest.raises(ValueError, match="Laplace needs validation data"):
        tacit.methods.Laplace().fit(
            lambda: nn.Linear(3, 2), (torch.randn(9, 3), torch.arange(9) % 2), epochs=1, lr=0.1
        )


class HeadFirst(nn.Module):
    """Registers the layer that makes the output before the layer that is called before it."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(4, 3), nn.Linear(2, 4)

    def forward(self, x):
        return self.head(self.body(x).relu())


DATA = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
SETTINGS = {"epochs": 2, "lr": 0.05, "batch_size": 20, "progress": False}


def test_the_layer_that_makes_the_output_is_random(tmp_path):
    laplace = tacit.methods.Laplace(tune="marglik")
    predictor = laplace.fit(HeadFirst, DATA, **SETTINGS)
    assert predictor.last == "head"
    phi, outputs = predictor.features(DATA[0])
    assert_close(phi[:, :4].float(), predictor.net.body(DATA[0]).relu())
    assert_close(outputs.float(), predictor.net(DATA[0]))
    loaded = tacit.methods.load(
        tacit.methods.save(predictor, tmp_path / "p.safetensors"), HeadFirst
    )
    assert loaded.last == "head"
    assert torch.equal(
        tacit.predict(loaded, DATA[0]).probs, tacit.predict(predictor, DATA[0]).probs
    )


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(self.layer(x))


class Adapted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + x


@pytest.mark.parametrize(
    "make_net",
    [
        lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True)),
        lambda: nn.Sequential(nn.Linear(2, 3), nn.Flatten(0)),
        lambda: nn.Sequential(nn.Unflatten(1, (2, 1)), nn.Conv1d(2, 3, 1), nn.Flatten()),
        Twice,
        lambda: Adapted(2, 2),
    ],
    ids=["tanh", "in-place relu", "view", "no linear layer", "called twice", "subclass"],
)
def test_a_network_that_does_not_end_in_a_linear_layer_is_refused(make_net):
    batch = next(Batches("data", DATA, 6).epoch())
    with pytest.raises(ValueError, match="Laplace: expected a network whose output is the unmod"):
        output_layer(make_net(), batch)


@pytest.mark.parametrize("smoothing", [0.0, 0.4])
@pytest.mark.parametrize("weights", [None, [1.0, 4.0, 0.5], [0.0, 1.0, 3.0]])
def test_the_curvature_is_that_of_the_loss_with_class_weights_and_label_smoothing(
    weights, smoothing
):
    # With equal features KFAC is exact. Sorted labels: one batch has no weight at all.
    likelihood = tacit.Categorical(class_weights=weights, label_smoothing=smoothing)
    layer, x = nn.Linear(2, 3, bias=False).double(), features(1, 2).expand(21, 2)
    y = torch.tensor([0] * 7 + [1] * 9 + [2] * 5)
    predictor = LastLayer(layer, likelihood, "")
    log_likelihood = predictor.fit_curvature(Batches("data", (x, y), 7))

    def total(weight):
        return 21 * likelihood.loss(x @ weight.view(3, 2).T, y)

    flat = layer.weight.detach().flatten()
    assert log_likelihood == pytest.approx(-total(flat).item())
    A, G = (
        vectors @ torch.diag(values) @ vectors.T
        for values, vectors in (
            (predictor.input_values, predictor.input_vectors),
            (predictor.output_values, predictor.output_vectors),
        )
    )
    hessian = torch.autograd.functional.hessian(total, flat)
    assert_close(torch.kron(G, A), hessian, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", [Laplace("marglik"), TemperatureScaling()])
def test_unsuitable_likelihoods_are_refused_before_training(method, monkeypatch):
    monkeypatch.setattr(Task, "trained", lambda *_: pytest.fail("it was trained"))
    data = torch.randn(8, 4), torch.randn(8, 1)
    with pytest.raises(TypeError, match="expected a Categorical.* likelihood, received Hetero"):
        method.fit(
            lambda: nn.Linear(4, 2), data, data, epochs=1, lr=0.01, progress=False,
            likelihood=tacit.HeteroscedasticGaussian(),
        )  # fmt: skip


def test_ignored_labels_are_refused_before_training(monkeypatch):
    monkeypatch.setattr(Task, "trained", lambda *_: pytest.fail("it was trained"))
    data = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    with pytest.raises(ValueError, match="Laplace: ignore_index is not supported; leave these"):
        Laplace("marglik").fit(
            lambda: nn.Linear(4, 2), data, epochs=1, lr=0.01, progress=False,
            likelihood=tacit.Categorical(ignore_index=0),
        )  # fmt: skip


def test_unsuitable_networks_are_refused_before_training(monkeypatch):
    monkeypatch.setattr(Task, "trained", lambda *_: pytest.fail("it was trained"))
    data = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    with pytest.raises(ValueError, match="Laplace: expected a network whose output is"):
        Laplace("marglik").fit(
            lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()), data, epochs=1, lr=0.01,
            progress=False,
        )  # fmt: skip
