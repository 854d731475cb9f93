import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.methods import MeanFieldVI
from tacit.methods.mean_field_vi import unit_prior
from tacit.weights.covariance import PositiveDiagonal

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
Y = 1 * (X[:, 0] > 0) + 1 * (X[:, 1] > 0)
SETTINGS = {"epochs": 4, "lr": 0.05, "batch_size": 20, "progress": False}


def net():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))


def test_the_prior_has_unit_variance_around_the_initial_weights():
    model = tacit.variational(net(), {"*": PositiveDiagonal(0.1)})
    prior = unit_prior(model)
    assert list(prior.distributions) == ["0", "2"]
    for layer in prior.distributions.values():
        assert (layer.dense_mean() == 0).all()  # first and last layer
        assert_close(layer.dense_covariance(), torch.eye(len(layer.dense_mean())))
    deep = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    middle = unit_prior(tacit.variational(deep, {"*": PositiveDiagonal(0.1)})).distributions["1"]
    assert_close(middle.mean["weight"], deep[1].weight.detach())


def test_predictions_average_logits():
    predictor = MeanFieldVI(samples=2).fit(net, (X, Y), **SETTINGS)
    found = tacit.predict(predictor, X, samples=4)
    assert_close(found.probs, found.logits.mean(0).softmax(-1))
