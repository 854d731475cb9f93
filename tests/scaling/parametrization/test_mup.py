"""Agreement with the `mup` package in effective initialization and learning rates.

mup keeps a forward multiplier 1/m in its output layer, where m is the ratio of widths. By Lemma J.1
the effective standard deviation is 1/m times the stored one, and the effective learning rate 1/m^2
times (SGD) or 1/m times (Adam) the optimizer's.
"""

import copy

import pytest
from torch import nn

import tacit

mup = pytest.importorskip("mup")


def mlp(width, readout=nn.Linear):
    return nn.Sequential(
        nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 2 * width), nn.ReLU(),
        readout(2 * width, 3),
    )  # fmt: skip


def cnn(width, readout=nn.Linear):
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.GroupNorm(4, width),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), readout(width, 3),
    )  # fmt: skip


BASE, WIDTH, RATIO = 16, 64, 4


@pytest.fixture(params=[mlp, cnn])
def make(request):
    return request.param


def in_mup(make):
    model = make(WIDTH, mup.MuReadout)
    before = copy.deepcopy(model.state_dict())
    base, delta = make(BASE, mup.MuReadout), make(BASE + 4, mup.MuReadout)
    mup.set_base_shapes(model, base, delta=delta)
    return model, before


@pytest.mark.parametrize(("optimizer", "power"), [("sgd", 2), ("adam", 1)])
def test_learning_rates_agree_with_mup(make, optimizer, power):
    model, _ = in_mup(make)
    constructor = {"sgd": mup.MuSGD, "adam": mup.MuAdam}[optimizer]
    groups = constructor(model.parameters(), lr=1.0).param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    readout = list(model)[-1].weight
    parametrization = tacit.MaximalUpdate(base=make(BASE))
    tensors = parametrization.parameters_of(make(WIDTH))
    for name, parameter in model.named_parameters():
        multiplier = 1 / RATIO if parameter is readout else 1.0
        effective = rates[id(parameter)] * multiplier**power
        ours = parametrization.learning_rate(tensors[name], optimizer)
        assert ours == pytest.approx(effective), name


def test_initialization_agrees_with_mup(make):
    """mup rescales PyTorch's draws: its factor must equal our ratio to Standard."""
    model, before = in_mup(make)
    readout = list(model)[-1].weight
    parametrization = tacit.MaximalUpdate(base=make(BASE))
    for name, tensor in parametrization.parameters_of(make(WIDTH)).items():
        if tensor.fans.kind == "gain":
            continue  # neither mup nor initialize changes norm layers
        multiplier = 1 / RATIO if model.get_parameter(name) is readout else 1.0
        theirs = (model.state_dict()[name] / before[name]).median().item() * multiplier
        ours = parametrization.std(tensor) / tacit.Standard().std(tensor)
        assert ours == pytest.approx(theirs, rel=1e-4), name
