import signal

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.methods import DeepEnsemble, GeneralizedVI, ImplicitBiasVI, MeanFieldVI, Standard
from tacit.methods.mean_field_vi import unit_prior
from tacit.methods.task import Task
from tacit.studies.experiments import comparison
from tacit.weights.covariance import PositiveDiagonal

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
Y = 1 * (X[:, 0] > 0) + 1 * (X[:, 1] > 0)
SETTINGS = {"epochs": 4, "lr": 0.05, "batch_size": 20, "progress": False}


def net():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))


def test_members_differ():
    predictor = DeepEnsemble(3).fit(net, (X, Y), **SETTINGS)
    functions = tacit.predict(predictor, X).logits
    assert functions.shape == (3, 60, 3)
    assert not torch.equal(functions[0], functions[1])
    found = tacit.predict(predictor, X)
    assert_close(found.probs, functions.softmax(-1).mean(0))
    one = Standard().fit(net, (X, Y), **SETTINGS)
    assert predictor.cost.parameters > 2.9 * one.cost.parameters


def test_the_first_member_is_the_plain_network():
    plain = tacit.predict(Standard().fit(net, (X, Y), seed=4, **SETTINGS), X).logits[0]
    first = tacit.predict(DeepEnsemble(2).fit(net, (X, Y), seed=4, **SETTINGS), X).logits[0]
    assert torch.equal(plain, first)


def test_the_users_likelihood_is_copied():
    likelihood = tacit.Categorical()
    predictor = DeepEnsemble(2).fit(net, (X, Y), likelihood=likelihood, **SETTINGS)
    assert likelihood.averaging == "log_probs"
    assert predictor.likelihood.averaging == "probs"


def test_the_prior_of_mean_field_vi():
    model = tacit.variational(net(), {"*": PositiveDiagonal(0.1)})
    prior = unit_prior(model)
    assert list(prior.distributions) == ["0", "2"]
    for layer in prior.distributions.values():
        assert (layer.dense_mean() == 0).all()  # both are ends here
        assert_close(layer.dense_covariance(), torch.eye(len(layer.dense_mean())))
    deep = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    middle = unit_prior(tacit.variational(deep, {"*": PositiveDiagonal(0.1)})).distributions["1"]
    assert_close(middle.mean["weight"], deep[1].weight.detach())


def test_mean_field_vi_averages_logits():
    predictor = MeanFieldVI(samples=2).fit(net, (X, Y), **SETTINGS)
    found = tacit.predict(predictor, X, samples=4)
    assert_close(found.probs, found.logits.mean(0).softmax(-1))


def test_a_strong_regularizer_keeps_the_prior():
    start = Task(net, None, None, tacit.Categorical(), None, 0, {}).net()
    distances = []
    for strength in (1e-3, 1e2):
        predictor = GeneralizedVI(strength, ["2"], rank=2).fit(net, (X, Y), **SETTINGS)
        distances.append((predictor.model.module[2].weight - start[2].weight).norm().item())
    assert distances[1] < distances[0]


def test_implicit_bias_vi_is_fit_and_calibrate():
    predictor = ImplicitBiasVI(rank=3).fit(net, (X, Y), (X, Y), **SETTINGS)
    assert predictor.likelihood.temperature != 1
    plain = ImplicitBiasVI(rank=3, calibrated=False).fit(net, (X, Y), (X, Y), **SETTINGS)
    assert plain.likelihood.temperature == 1
    for one, two in zip(predictor.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_parametrizations():
    base = net()
    wide = lambda: nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))  # noqa: E731
    for method in (Standard(), ImplicitBiasVI(rank=3), DeepEnsemble(2)):
        predictor = method.fit(
            wide, (X, Y), parametrization=tacit.MaximalUpdate(base=base), **SETTINGS
        )
        assert tacit.predict(predictor, X).probs.isfinite().all()


def test_the_same_network_twice():
    only = net()
    with pytest.raises(ValueError, match="it returned the same network twice"):
        DeepEnsemble(2).fit(lambda: only, (X, Y), **SETTINGS)


def test_settings_that_cant_be():
    for make in (
        lambda: DeepEnsemble(0), lambda: MeanFieldVI(samples=0), lambda: MeanFieldVI(scale=0.0),
        lambda: GeneralizedVI(0.0), lambda: tacit.methods.SWAG(rank=0),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            make()
    with pytest.raises(TypeError, match="make_net: expected a function that makes a network"):
        Standard().fit(lambda: None, (X, Y), **SETTINGS)


class TestFiles:
    @pytest.fixture
    def path(self, tmp_path):
        predictor = Standard().fit(lambda: tacit.models.MLP(2, [8], 3), (X, Y), **SETTINGS)
        return tacit.methods.save(predictor, tmp_path / "p.safetensors")

    def test_our_own_networks_rebuild_themselves(self, path):
        assert tacit.predict(tacit.methods.load(path), X).probs.shape == (60, 3)

    def test_another_network(self, path):
        with pytest.raises(ValueError, match="doesn't fit the model"):
            tacit.methods.load(path, lambda: tacit.models.MLP(2, [9], 3))

    def test_a_network_that_cant_rebuild_itself(self, tmp_path):
        predictor = Standard().fit(net, (X, Y), **SETTINGS)
        path = tacit.methods.save(predictor, tmp_path / "q.safetensors")
        with pytest.raises(ValueError, match="holds a Sequential, which is none of tacit.models"):
            tacit.methods.load(path)

    def test_a_model_is_no_predictor(self, tmp_path):
        model = tacit.variational(net(), rank=2)
        with pytest.raises(ValueError, match="was not written by tacit.methods.save"):
            tacit.methods.load(tacit.save(model, tmp_path / "m.safetensors"))
        with pytest.raises(TypeError, match="saved by tacit.methods.save"):
            tacit.save(Standard().fit(net, (X, Y), **SETTINGS), tmp_path / "p.safetensors")

    def test_no_file(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="load: there is no file"):
            tacit.methods.load(tmp_path / "none")


def test_a_training_that_is_stopped_is_no_result():
    def stop(row, model):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        DeepEnsemble(2).fit(net, (X, Y), callbacks=[stop], **SETTINGS)


def test_loading_says_what_it_needs(tmp_path):
    path = tacit.methods.save(Standard().fit(net, (X, Y), **SETTINGS), tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="tacit.methods.load\\(path, make_net\\)"):
        tacit.methods.load(path)
    with pytest.raises(TypeError, match="expected make_net, a function that makes a network"):
        tacit.methods.load(path, net())


def test_draws_and_ranks_that_cant_be():
    for setting in ("samples", "draws", "rank"):
        with pytest.raises(ValueError, match=f"ImplicitBiasVI\\({setting}\\): expected"):
            ImplicitBiasVI(**{setting: 0})


def test_pretrained_weights_are_kept(tmp_path):
    """Only what came from no file is drawn as the parametrization says."""
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


def test_the_papers_networks_are_pretrained():
    for problem in (comparison.cifar10, comparison.cifar100, comparison.tiny_imagenet):
        assert problem.make_net.keywords["pretrained"] == "imagenet"
