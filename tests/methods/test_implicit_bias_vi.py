import pytest
import torch
from torch import nn

from tacit.methods import ImplicitBiasVI

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
Y = 1 * (X[:, 0] > 0) + 1 * (X[:, 1] > 0)
SETTINGS = {"epochs": 4, "lr": 0.05, "batch_size": 20, "progress": False}


def net():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))


def test_calibration_sets_the_temperature_and_nothing_else():
    predictor = ImplicitBiasVI(rank=3).fit(net, (X, Y), (X, Y), **SETTINGS)
    assert predictor.likelihood.temperature != 1
    plain = ImplicitBiasVI(rank=3, calibrated=False).fit(net, (X, Y), (X, Y), **SETTINGS)
    assert plain.likelihood.temperature == 1
    for one, two in zip(predictor.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_the_averaging_of_predictions_can_be_chosen():
    for averaging in ("probs", "log_probs"):
        method = ImplicitBiasVI(averaging=averaging)
        assert method.fit(net, (X, Y), **SETTINGS).likelihood.averaging == averaging
    assert ImplicitBiasVI() == ImplicitBiasVI(averaging="probs")
    with pytest.raises(ValueError, match="averaging: expected log_probs, probs, logits"):
        ImplicitBiasVI(averaging="mean")
