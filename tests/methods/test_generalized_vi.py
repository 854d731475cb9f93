import pytest
import torch
from torch import nn

import tacit
from tacit.methods import GeneralizedVI
from tacit.methods.task import Task

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
Y = 1 * (X[:, 0] > 0) + 1 * (X[:, 1] > 0)
SETTINGS = {"epochs": 4, "lr": 0.05, "batch_size": 20, "progress": False}


def net():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))


def test_a_stronger_regularizer_stays_closer_to_the_prior():
    start = Task(net, None, None, tacit.Categorical(), None, 0, {}).net()
    distances = []
    for strength in (1e-3, 1e2):
        predictor = GeneralizedVI(strength, ["2"], rank=2).fit(net, (X, Y), **SETTINGS)
        distances.append((predictor.model.module[2].weight - start[2].weight).norm().item())
    assert distances[1] < distances[0]


def test_the_averaging_of_predictions_can_be_chosen():
    for averaging in ("probs", "log_probs"):
        method = GeneralizedVI(1.0, ["2"], rank=2, averaging=averaging)
        assert method.fit(net, (X, Y), **SETTINGS).likelihood.averaging == averaging
    assert GeneralizedVI() == GeneralizedVI(averaging="log_probs")
    with pytest.raises(ValueError, match="averaging: expected log_probs, probs, logits"):
        GeneralizedVI(averaging="mean")
