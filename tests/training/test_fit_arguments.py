"""Bad arguments of tacit.fit raise errors before training starts."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tacit
from tacit.training.arguments import add_likelihood
from training.fit_problem import X, Y, fit, make_model


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"train": X}, TypeError, "train: expected a pair of tensors or arrays, inputs and"),
        ({"train": (X, Y[:5])}, ValueError, "train: expected one target for each input"),
        ({"validation": (X,)}, TypeError, "validation: expected a pair"),
        ({"epochs": 0}, ValueError, "epochs: expected an integer of at least 1"),
        ({"lr": -1}, ValueError, "lr: expected a number above 0"),
        ({"batch_size": 0}, ValueError, "batch_size: expected"),
        ({"samples": 0}, ValueError, "samples: expected"),
        ({"draws": 0}, ValueError, "draws: expected"),
        ({"optimizer": "lion"}, ValueError, "optimizer: expected one of"),
        (
            {"optimizer": torch.optim.Adam},
            TypeError,
            "optimizer: expected a name such as 'sgd'",
        ),
        ({"objective": "elbo"}, TypeError, r"objective: expected tacit.ExpectedLoss\(\), "),
        ({"early_stopping": 3}, ValueError, "early_stopping needs validation data"),
        ({"schedule": "cos"}, ValueError, "schedule: expected 'cosine' or a function"),
        ({"resume": "yes"}, ValueError, "resume: expected 'auto' or 'never'"),
        ({"train": (X, Y + 1)}, ValueError, "label 2 is out of range"),
        ({"train": (X, Y.float())}, TypeError, "expected integer labels"),
        ({"train": (X * math.nan, Y)}, ValueError, "train: some inputs are not finite"),
        ({"early_stopping": 0, "validation": (X, Y)}, ValueError, "early_stopping: expected"),
        ({"seed": None}, ValueError, "seed: expected an integer"),
        ({"samples": 2, "draws": 2}, ValueError, "samples and draws exclude each other"),
        (
            {"train": DataLoader(TensorDataset(X, Y), 128, drop_last=True)},
            ValueError,
            "train: 96 examples make no batch",
        ),
        ({"likelihood": tacit.Categorical()}, ValueError, "the model already has one"),
    ],
)
def test_bad_arguments_raise_errors(change, error, match):
    with pytest.raises(error, match=match):
        fit(make_model(), **change)


def test_draws_of_a_plain_network_raise_an_error():
    with pytest.raises(ValueError, match="samples, draws and objective are for variational"):
        fit(nn.Linear(4, 2), likelihood=tacit.Categorical(), draws=4)


def test_a_missing_likelihood_raises_an_error():
    with pytest.raises(ValueError, match="likelihood: the model has none"):
        fit(nn.Linear(4, 2))


def test_a_learned_likelihood_with_several_processes_raises_an_error():
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="can't be learned with several processes"):
        add_likelihood(optimizer, net, tacit.Gaussian(1.0), 0.1, processes=2)
