"""Bad arguments of tacit.fit raise errors before training starts."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tacit
from tacit.training.arguments import add_likelihood
from tacit.training.history import History, plot_history
from training.fit_problem import X, Y, fit, make_model, weights


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
        ({"likelihood": "categorical"}, TypeError, "likelihood: expected tacit.Categorical"),
        ({"lr": math.nan}, ValueError, "lr: expected a number above 0, received nan"),
        ({"lr": "0.1"}, TypeError, "lr: expected a number above 0, received '0.1'"),
        ({"epochs": 2.5}, TypeError, "epochs: expected an integer"),
        ({"seed": -1}, ValueError, "seed: expected an integer"),
        ({"seed": True}, ValueError, "seed: expected an integer"),
        ({"momentum": 1.0}, ValueError, "momentum: expected a number of at least 0 and below 1"),
        ({"momentum": "0.9"}, TypeError, "momentum: expected a number of at least 0"),
        ({"momentum": math.nan}, ValueError, "momentum: expected a number of at least 0"),
        (
            {"momentum": 0.9, "optimizer": "adam"},
            ValueError,
            "momentum: expected only with optimizer='sgd', received 0.9 with 'adam'",
        ),
        ({"weight_decay": -1}, ValueError, "weight_decay: expected a number of at least 0, rec"),
        ({"weight_decay": None}, TypeError, "weight_decay: expected a number of at least 0, rec"),
        ({"callbacks": None}, TypeError, "callbacks: expected a list of functions"),
        ({"callbacks": print}, TypeError, "callbacks: expected a list of functions"),
        ({"callbacks": [None]}, TypeError, "callbacks: expected a list of functions"),
        ({"callbacks": "print"}, TypeError, "callbacks: expected a list of functions"),
        ({"checkpoint": 5}, TypeError, "checkpoint: expected the path of a folder, received 5"),
        ({"resume": None}, ValueError, "resume: expected 'auto' or 'never', received None"),
        ({"parametrization": "mup"}, TypeError, "parametrization: expected tacit.Standard"),
        ({"parametrization": tacit.Standard()}, ValueError, "a variational model has its own"),
        ({"train": None}, TypeError, "train: expected a pair of tensors .* received NoneType"),
        (
            {"train": (X, None)},
            TypeError,
            "train: expected a tensor of targets alongside the inputs",
        ),
        ({"train": (None, Y)}, TypeError, "train: expected tensors or arrays, received NoneType"),
        ({"train": (X[:0], Y[:0])}, ValueError, "train: there are no examples"),
        (
            {"train": DataLoader([(X[:8], "a")], batch_size=None)},
            TypeError,
            "train: expected a tensor of targets alongside the inputs, received str",
        ),
        ({"validation": (X[:0], Y[:0])}, ValueError, "validation: there are no examples"),
        (
            {"validation": (X, None)},
            TypeError,
            "validation: expected a tensor of targets alongside the inputs",
        ),
        (
            {"schedule": lambda part: math.nan},
            ValueError,
            r"schedule\(0\): expected a number of at",
        ),
        ({"schedule": lambda part: -part - 1}, ValueError, r"schedule\(0\): expected a number of"),
        ({"schedule": lambda part: None}, TypeError, r"schedule\(0\): expected a number of at"),
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


@pytest.mark.parametrize("model", [None, 5, "net", nn.Linear])
def test_something_else_than_a_model_raises_an_error(model):
    with pytest.raises(TypeError, match="model: expected a model made by tacit.variational, or a"):
        fit(model)


def test_a_model_without_parameters_raises_an_error():
    frozen = nn.Linear(4, 2).requires_grad_(False)
    for model in (nn.ReLU(), frozen):
        with pytest.raises(ValueError, match="has no parameters to train"):
            fit(model, likelihood=tacit.Categorical())


def test_an_error_leaves_the_model_as_it_was():
    model = make_model()
    model.likelihood.set_temperature(3.0)
    with pytest.raises(TypeError, match="train: expected a pair"):
        fit(model, X)
    assert model.likelihood.temperature == 3


def test_numbers_of_numpy_are_accepted_everywhere(tmp_path):
    plain, numpy = make_model(), make_model()
    values = {"epochs": 2, "batch_size": 16, "draws": 4, "seed": 3, "early_stopping": 5}
    numbers = {"lr": 0.0625, "momentum": 0.5, "weight_decay": 0.25}
    fit(plain, validation=(X, Y), **values, **numbers, schedule=lambda part: 0.5)
    fit(
        numpy, validation=(X, Y), checkpoint=tmp_path, schedule=lambda part: np.float32(0.5),
        **{name: np.int64(value) for name, value in values.items()},
        **{name: np.float32(value) for name, value in numbers.items()},
    )  # fmt: skip
    assert torch.equal(weights(plain), weights(numpy))
    assert len(fit(make_model(), samples=np.int32(2), checkpoint=tmp_path / "b", epochs=1)) == 1
    fit(make_model(), schedule=lambda part: torch.tensor(1.0), epochs=1)
    fit(make_model(), lr=Fraction(1, 16), epochs=1)


def test_numpy_numbers_of_objectives_are_accepted():
    model = tacit.variational(
        nn.Linear(4, 2), {"": tacit.Diagonal()}, likelihood=tacit.Categorical()
    )
    for objective in (
        tacit.GVI(model.prior(), np.float64(1.0)),
        tacit.ELBO(model.prior(), weight=np.float64(0.1)),
    ):
        assert math.isfinite(fit(model, objective=objective, epochs=1)[-1]["loss"])


def test_callbacks_may_add_numbers_to_the_history(tmp_path):
    def add(row, model):
        row.update(own=np.float32(0.5), steps=np.int64(row["epoch"]), norm=torch.tensor(2.0))

    fit(make_model(), epochs=1, callbacks=[add], checkpoint=tmp_path)
    history = fit(make_model(), epochs=2, callbacks=[add], checkpoint=tmp_path)
    assert (history["own"], history["steps"], history["norm"]) == ([0.5] * 2, [1, 2], [2.0] * 2)
    with pytest.raises(TypeError, match="callbacks: expected a number or a string as 'all'"):
        fit(make_model(), callbacks=[lambda row, _: row.update(all=torch.ones(3))])


def test_the_history_is_indexed_by_epoch_or_quantity():
    history = History([{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": 2.0, "nll": 1.0}])
    assert history[-1] == history[1] == history[np.int64(1)] == history.epochs[1]
    assert history[:1] == history.epochs[:1]
    assert list(history) == history.epochs
    assert history["loss"] == [3.0, 2.0]
    assert math.isnan(history["nll"][0])
    with pytest.raises(IndexError, match="history: no epoch at 2; 2 were recorded"):
        history[2]
    with pytest.raises(TypeError, match="history: expected the name of a quantity, or an integer"):
        history[1.0]
    with pytest.raises(KeyError, match="Recorded quantities: none yet"):
        History()["loss"]


def test_plotting_nothing_raises_an_error(tmp_path):
    for empty in ([], (), [{}], [{"epoch": 1}], [{"loss": 1.0}]):
        with pytest.raises(ValueError, match="plot_history: expected"):
            plot_history(empty)
    with pytest.raises(ValueError, match="plot_history: expected at least one epoch"):
        History().plot(tmp_path / "history.png")


def test_a_last_batch_of_one_example_is_refused_with_batch_norm():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    x, y = torch.randn(9, 4), torch.zeros(9, dtype=torch.long)
    settings = {"epochs": 1, "lr": 0.01, "likelihood": tacit.Categorical()}
    with pytest.raises(ValueError, match=r"batch_size: the last .* one of the 9 examples"):
        tacit.fit(net, (x, y), batch_size=4, **settings)
    tacit.fit(net, (x, y), batch_size=5, **settings)


def test_labels_may_be_booleans():
    x, y = torch.randn(8, 4), torch.tensor([True, False] * 4)
    history = tacit.fit(nn.Linear(4, 2), (x, y), epochs=1, lr=0.01, likelihood=tacit.Categorical())
    assert len(history) == 1
