import json
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

import tacit

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def net(hidden=8):
    return nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 3))


STRUCTURES = [
    tacit.LowRank(2, scale=0.5),
    tacit.FullRank(max_gigabytes=0.5),
    tacit.Diagonal(),
    tacit.Kronecker(2, 2),
    tacit.LowRankPlusDiagonal(1),
]
LIKELIHOODS = [
    None,
    tacit.Categorical(["a", "b", "c"], class_weights=[1, 2, 3], label_smoothing=0.1),
    tacit.Bernoulli(averaging="probs"),
    tacit.Gaussian(0.3, learn=False),
]


def sampled(model):
    return model.eval()(X, samples=4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("covariance", STRUCTURES, ids=lambda c: type(c).__name__)
def test_a_loaded_model_samples_the_same(covariance, tmp_path):
    where = {"0.weight": tacit.LowRank(1), "2": covariance}
    model = tacit.variational(net(), where, noise=tacit.noise.StudentT(5), draws=4)
    path = tacit.save(model, tmp_path / "model.safetensors")
    other = tacit.load(path, net())
    assert not other.training
    assert other.layers == model.layers
    assert (other.noise, other.draws) == (model.noise, model.draws)
    assert_close(sampled(other), sampled(model), rtol=0, atol=0)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda x: type(x).__name__)
def test_likelihood_temperature_and_preprocessing_are_saved(likelihood, tmp_path):
    model = tacit.variational(net(), likelihood=likelihood, rank=2)
    if isinstance(likelihood, tacit.Categorical):
        likelihood.set_temperature(1.7, "mean")
    path = tacit.save(model, tmp_path / "m.safetensors", preprocessing={"mean": 0.5, "std": [1, 2]})
    other = tacit.load(path, net())
    assert other.preprocessing == {"mean": 0.5, "std": [1, 2]}
    assert repr(other.likelihood) == repr(model.likelihood)
    if likelihood is not None:
        ours, theirs = (m.likelihood.predictive(sampled(m)).to_numpy() for m in (model, other))
        assert all((ours[name] == theirs[name]).all() for name in ours)
    again = tacit.load(tacit.save(other, tmp_path / "again.safetensors"), net())
    assert again.preprocessing == other.preprocessing
    if isinstance(likelihood, tacit.Categorical):
        assert other.likelihood.class_names == ("a", "b", "c")
        assert other.likelihood.scope == "mean"


def test_temperatures_per_class_are_saved(tmp_path):
    model = tacit.variational(nn.Linear(4, 3), rank=2, likelihood=tacit.Categorical())
    model.likelihood.set_temperature(torch.tensor([1.0, 2.0, 3.0]), "mean", torch.arange(3.0))
    loaded = tacit.load(tacit.save(model, tmp_path / "model.safetensors"), nn.Linear(4, 3))
    assert_close(loaded.likelihood.temperature, torch.tensor([1.0, 2.0, 3.0]))
    assert_close(loaded.likelihood.offset, torch.arange(3.0))
    assert loaded.likelihood.scope == "mean"


def test_tied_weights_stay_tied(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            return self.head(self.embedding(x))

    model = tacit.variational(Tied(), {"head": tacit.LowRank(2)}).eval()
    other = tacit.load(tacit.save(model, tmp_path / "m.safetensors"), Tied())
    x = torch.arange(5)
    assert_close(other(x), model(x), rtol=0, atol=0)
    assert other.module.head.weight is other.module.embedding.weight


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (tacit.models.MLP(4, [8, 8], 3), torch.ones(2, 4)),
        (tacit.models.LeNet5(classes=3), torch.ones(2, 1, 28, 28)),
        (tacit.models.ResNet18(3, norm="batch", width=8), torch.ones(2, 3, 32, 32)),
        (tacit.models.ResNet50(3, stem="imagenet", width=8), torch.ones(2, 3, 64, 64)),
        (tacit.models.ViT(3, width=16, depth=1, heads=2), torch.ones(2, 3, 32, 32)),
    ],
    ids=["MLP", "LeNet5", "ResNet18", "ResNet50", "ViT"],
)
def test_networks_of_the_library_are_rebuilt_from_the_file(net, x, tmp_path):
    model = tacit.variational(net, rank=2).eval()
    other = tacit.load(tacit.save(model, tmp_path / "m.safetensors"))
    assert type(other.module) is type(net)
    assert_close(other(x), model(x), rtol=0, atol=0)


class TestErrors:
    @pytest.fixture
    def path(self, tmp_path):
        return tacit.save(tacit.variational(net(), rank=2), tmp_path / "m.safetensors")

    def test_another_network_is_refused(self, path):
        with pytest.raises(ValueError, match=r"'\w+.0.\w+' is \(.*9.*\) in the model and"):
            tacit.load(path, net(hidden=9))
        with pytest.raises(ValueError, match="no layer matches '2'"):
            tacit.load(path, nn.Sequential(nn.Linear(4, 8)))

    def test_a_custom_network_must_be_passed(self, path):
        with pytest.raises(ValueError, match="holds a Sequential, .* pass the network"):
            tacit.load(path)

    def test_a_truncated_file_is_refused(self, path):
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(ValueError, match=r"m.safetensors can't be read"):
            tacit.load(path, net())

    def test_a_foreign_file_is_refused(self, tmp_path):
        path = tmp_path / "foreign.safetensors"
        save_file({"a": torch.zeros(1)}, path)
        with pytest.raises(ValueError, match=r"foreign.safetensors was not written by tacit.save"):
            tacit.load(path, net())

    def test_a_later_version_is_refused(self, tmp_path):
        path = tmp_path / "later.safetensors"
        save_file({"a": torch.zeros(1)}, path, metadata={"tacit_model": json.dumps({"version": 9})})
        with pytest.raises(ValueError, match="has version 9, this library reads 1"):
            tacit.load(path, net())

    def test_a_missing_file_is_reported(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="there is no file"):
            tacit.load(tmp_path / "nothing", net())

    def test_custom_types_cannot_be_saved(self, tmp_path):
        class Own(tacit.noise.Gaussian):
            pass

        model = tacit.variational(net(), rank=2, noise=Own())
        with pytest.raises(TypeError, match="can't be described in a file"):
            tacit.save(model, tmp_path / "m")
        with pytest.raises(TypeError, match="expected a variational model, received Sequential"):
            tacit.save(net(), tmp_path / "m")

    def test_a_failed_write_keeps_the_old_file(self, path, monkeypatch):
        before = path.read_bytes()

        def full(*args, **kwargs):
            raise OSError("No space left on device")

        monkeypatch.setattr("tacit._support.files.save_file", full)
        with pytest.raises(OSError, match="could not be written: No space left"):
            tacit.save(tacit.variational(net(), rank=2), path)
        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]


def test_saving_and_loading_never_use_pickle(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("pickle")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    path = tacit.save(tacit.variational(net(), rank=2), tmp_path / "m.safetensors")
    header = path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")]
    assert "tacit_model" in json.loads(header)["__metadata__"]
    tacit.load(path, net())
