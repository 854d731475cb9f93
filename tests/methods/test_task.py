from types import SimpleNamespace

import pytest
import torch
from torch import nn

import tacit
from tacit.methods import (
    SWAG,
    DeepEnsemble,
    GeneralizedVI,
    ImplicitBiasVI,
    MeanFieldVI,
    Method,
    Standard,
)
from tacit.methods.network_cache import NetworkCache
from tacit.methods.task import Task
from tacit.studies.experiments import comparison

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
Y = 1 * (X[:, 0] > 0) + 1 * (X[:, 1] > 0)
SETTINGS = {"epochs": 4, "lr": 0.05, "batch_size": 20, "progress": False}


def net():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))


def test_settings_out_of_range_are_refused():
    for make in (
        lambda: DeepEnsemble(0), lambda: MeanFieldVI(samples=0), lambda: MeanFieldVI(scale=0.0),
        lambda: GeneralizedVI(0.0), lambda: SWAG(rank=0), lambda: SWAG(scale=0.0),
        lambda: SWAG(samples=0),
        lambda: ImplicitBiasVI(samples=0), lambda: ImplicitBiasVI(draws=0),
        lambda: ImplicitBiasVI(rank=0), lambda: GeneralizedVI(rank=0),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"\w+\(\w+\): expected"):
            make()


def test_a_make_net_that_returns_no_network_is_refused():
    with pytest.raises(TypeError, match="make_net: expected a function that makes a network"):
        Standard().fit(lambda: None, (X, Y), **SETTINGS)


def test_a_method_that_returns_a_network_is_refused():
    class Own(Method):
        def learn(self, task):
            return task.trained()

    with pytest.raises(TypeError, match=r"Own\.learn: expected .* received Sequential"):
        Own().fit(net, (X, Y), **SETTINGS)


@pytest.mark.parametrize(
    "method", [Standard(), ImplicitBiasVI(rank=3), DeepEnsemble(2)], ids=lambda m: type(m).__name__
)
def test_a_method_trains_under_a_parametrization(method):
    def wide():
        return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))

    parametrization = tacit.MaximalUpdate(base=net())
    with_it, without = (
        tacit.predict(
            method.fit(wide, (X, Y), parametrization=each, **SETTINGS), X,
            generator=torch.Generator().manual_seed(0),
        ).probs
        for each in (parametrization, None)
    )  # fmt: skip
    assert with_it.isfinite().all()
    assert not torch.allclose(with_it, without)


def test_a_network_of_the_cache_is_moved_to_the_device_of_training(tmp_path, monkeypatch):
    likelihood = tacit.Categorical()
    task = Task(net, (X, Y), None, likelihood, None, 0, SETTINGS, NetworkCache(tmp_path))
    task.trained()
    elsewhere = SimpleNamespace(device=torch.device("meta"))
    monkeypatch.setattr("tacit.methods.task.make_fabric", lambda *_: elsewhere)
    assert {p.device.type for p in task.trained().parameters()} == {"meta"}
    assert {b.device.type for b in likelihood.buffers()} <= {"meta"}


def test_pretrained_weights_are_kept(tmp_path):
    """The parametrization initializes only the layers without pretrained weights."""
    file = tmp_path / "weights.pt"
    source = tacit.models.ResNet18(1000, stem="imagenet", width=8)
    torch.save(source.state_dict(), file)

    def make_net():
        return tacit.models.ResNet18(10, width=8, pretrained=file)

    task = Task(make_net, None, None, tacit.Categorical(), tacit.Standard(), 0, {})
    net, own = task.net(), source.state_dict()
    for name, tensor in net.state_dict().items():
        layer = name.partition(".")[0]
        assert (layer in ("conv1", "fc")) != (name in own and torch.equal(tensor, own[name]))


def test_the_networks_of_the_papers_comparison_are_pretrained():
    for problem in (comparison.cifar10, comparison.cifar100, comparison.tiny_imagenet):
        assert problem.make_net.keywords["pretrained"] == "imagenet"


def test_the_averaging_is_set_for_discrete_likelihoods_only():
    for likelihood in (tacit.Categorical(), tacit.Bernoulli(), tacit.Gaussian()):
        task = Task(net, None, None, likelihood, None, 0, {})
        task.average("probs")
        assert getattr(likelihood, "averaging", None) in ("probs", None)
    assert not hasattr(likelihood, "averaging")
