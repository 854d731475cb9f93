"""A small classification problem and model for the tests of tacit.fit."""

import torch
from torch import nn

import tacit

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(96, 4, generator=GENERATOR)
Y = (X[:, 0] + X[:, 1] > 0).long()


def make_model(likelihood=None, outputs=2, **kwargs):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, outputs))
    return tacit.variational(
        net, {"2": tacit.LowRank(4)}, likelihood=likelihood or tacit.Categorical(), **kwargs
    )


def fit(model, train=(X, Y), validation=None, **kwargs):
    settings = {"epochs": 3, "lr": 0.05, "batch_size": 16, **kwargs}
    return tacit.fit(model, train, validation, **settings)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])
