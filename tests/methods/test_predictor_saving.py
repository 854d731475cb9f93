import pytest
import torch
from torch import nn

import tacit
from tacit.methods import Standard

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
Y = 1 * (X[:, 0] > 0) + 1 * (X[:, 1] > 0)
SETTINGS = {"epochs": 4, "lr": 0.05, "batch_size": 20, "progress": False}


def net():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))


def test_networks_of_the_library_are_rebuilt_from_the_file(tmp_path):
    predictor = Standard().fit(lambda: tacit.models.MLP(2, [8], 3), (X, Y), **SETTINGS)
    path = tacit.methods.save(predictor, tmp_path / "p.safetensors")
    found, expected = (tacit.predict(p, X).probs for p in (tacit.methods.load(path), predictor))
    assert torch.equal(found, expected)


def test_another_network_is_refused(tmp_path):
    predictor = Standard().fit(net, (X, Y), **SETTINGS)
    path = tacit.methods.save(predictor, tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match="doesn't fit the model"):
        tacit.methods.load(path, lambda: nn.Sequential(nn.Linear(2, 3)))


def test_a_custom_network_must_be_passed_as_make_net(tmp_path):
    predictor = Standard().fit(net, (X, Y), **SETTINGS)
    path = tacit.methods.save(predictor, tmp_path / "q.safetensors")
    expected = r"holds a Sequential, which is not in .* tacit.methods.load\(path, make_net\)"
    with pytest.raises(ValueError, match=expected):
        tacit.methods.load(path)
    with pytest.raises(TypeError, match="expected make_net, a function that makes a network"):
        tacit.methods.load(path, net())


def test_models_and_predictors_have_different_files(tmp_path):
    model = tacit.variational(net(), rank=2)
    with pytest.raises(ValueError, match="was not written by tacit.methods.save"):
        tacit.methods.load(tacit.save(model, tmp_path / "m.safetensors"))
    with pytest.raises(TypeError, match="with tacit.methods.save"):
        tacit.save(Standard().fit(net, (X, Y), **SETTINGS), tmp_path / "p.safetensors")


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="load: there is no file"):
        tacit.methods.load(tmp_path / "none")


def test_a_file_that_could_not_be_loaded_is_not_written(tmp_path):
    data = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    predictor = Standard().fit(
        lambda: tacit.models.MLP(4, [8], 2), data, epochs=1, lr=0.01, progress=False,
        likelihood=tacit.Categorical(["a", "b"]),
    )  # fmt: skip
    predictor.likelihood.class_names = ("a", "b", "c")
    with pytest.raises(ValueError, match="save: expected the same number of classes"):
        tacit.methods.save(predictor, tmp_path / "predictor.safetensors")
    assert not list(tmp_path.iterdir())


def test_preprocessing_is_kept_as_data(tmp_path):
    predictor = Standard().fit(lambda: tacit.models.MLP(2, [8], 3), (X, Y), **SETTINGS)
    path = tmp_path / "p.safetensors"
    given = {"mean": [0.5, 1.0], "names": ["a", "b"]}
    tacit.methods.save(predictor, path, preprocessing=given)
    assert tacit.methods.load(path).preprocessing == given
    tacit.methods.save(predictor, path)
    assert tacit.methods.load(path).preprocessing is None
    with pytest.raises(TypeError, match="preprocessing: expected JSON-serialisable data"):
        tacit.methods.save(predictor, path, preprocessing={"mean": X})


def test_validation_data_end_training(monkeypatch):
    monkeypatch.setattr("tacit.training.loop.MOST_STEPS", 100)
    monkeypatch.setattr("tacit.training.loop.MOST_EPOCHS", 1)
    settings = {"epochs": None, "lr": None, "progress": False}
    predictor = Standard().fit(net, (X, Y), (X, Y), **settings)
    assert (tacit.predict(predictor, X).label == Y).float().mean() > 0.5
    with pytest.raises(ValueError, match="expected a number of passes, or validation data"):
        Standard().fit(net, (X, Y), **settings)
