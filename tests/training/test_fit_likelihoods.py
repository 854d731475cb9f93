"""Likelihoods under tacit.fit: their metrics, learned parameters and temperature."""

import torch
from torch import nn

import tacit
from training.fit_problem import X, Y, fit, make_model


def test_regression_learns_the_noise_scale():
    y = X[:, :1] + 0.1 * torch.randn(96, 1, generator=torch.Generator().manual_seed(1))
    model = make_model(tacit.Gaussian(1.0), outputs=1)
    history = fit(model, (X, y), (X, y), epochs=60, lr=0.01, optimizer="adam")
    assert model.likelihood.scale < 0.5
    assert history["rmse"][-1] < 0.3
    assert 0.5 < history["coverage_90"][-1] <= 1


def test_binary_classification():
    model = make_model(tacit.Bernoulli(), outputs=1)
    assert fit(model, (X, Y), (X, Y), epochs=10)["accuracy"][-1] > 0.9


def test_a_likelihood_passed_to_fit_is_learned_and_saved(tmp_path):
    y = 3 * torch.randn(96, 1, generator=torch.Generator().manual_seed(1))
    likelihood, net = tacit.Gaussian(1.0), nn.Linear(4, 1)
    fit(net, (X, y), likelihood=likelihood, epochs=30, lr=0.02, checkpoint=tmp_path)
    assert likelihood.scale > 2
    restored = tacit.Gaussian(1.0)
    fit(nn.Linear(4, 1), (X, y), likelihood=restored, epochs=30, lr=0.02, checkpoint=tmp_path)
    assert restored.scale.item() == likelihood.scale.item()
    model = tacit.variational(nn.Linear(4, 1), rank=2)
    fit(model, (X, y), likelihood=tacit.Gaussian(1.0), epochs=1)
    assert tacit.predict(model, X).std.shape == (96, 1)
    assert not tacit.predict(model, X).std.requires_grad


def test_training_resets_the_temperature():
    model = make_model()
    model.likelihood.set_temperature(3.0)
    fit(model, epochs=1)
    assert model.likelihood.temperature == 1


def test_weight_decay_leaves_the_noise_scale_of_a_plain_network_alone():
    scales = []
    for optimizer in ("adam", "adamw"):  # without decay AdamW is Adam
        torch.manual_seed(0)
        likelihood, net = tacit.Gaussian(0.1), nn.Linear(4, 1)
        fit(net, (X, X[:, :1]), likelihood=likelihood, epochs=5, optimizer=optimizer)
        scales.append(likelihood.scale.item())
    assert scales[0] == scales[1]
