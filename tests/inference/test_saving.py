import json
import math
import pickle

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

import tacit
from tacit._support import files
from tacit._support.memory import peak_memory

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
    tacit.Bernoulli(["red", "round", "sweet"], averaging="log_probs"),
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
    if isinstance(likelihood, tacit.Bernoulli):
        assert other.likelihood.names == ("red", "round", "sweet")


def test_names_of_binary_targets_that_dont_fit_the_network_are_refused(tmp_path):
    model = tacit.variational(
        tacit.models.MLP(4, [8], 2), rank=2, likelihood=tacit.Bernoulli(["a", "b"])
    )
    path = tacit.save(model, tmp_path / "m.safetensors")
    assert tacit.load(path).likelihood.names == ("a", "b")
    with pytest.raises(ValueError, match="same number of targets, received names 1, the network's"):
        tacit.load(rewritten(path, put("likelihood", "names", ["a"])))
    with pytest.raises(ValueError, match=r"\['names'\]\[0\]: expected a string"):
        tacit.load(rewritten(path, put("likelihood", "names", [1, 2])))


def test_the_class_dimension_is_saved(tmp_path):
    def convolution():
        return nn.Conv2d(1, 3, 1)

    x, likelihood = torch.randn(2, 1, 4, 5), tacit.Categorical(ignore_index=255)
    model = tacit.variational(convolution(), rank=2, likelihood=likelihood).eval()
    unknown = tacit.load(tacit.save(model, tmp_path / "m.safetensors"), convolution())
    with pytest.raises(ValueError, match="two dimensions that may be the class dimension"):
        tacit.predict(unknown, x)
    likelihood.loss(model(x), torch.full((2, 4, 5), 2))
    loaded = tacit.load(tacit.save(model, tmp_path / "m.safetensors"), convolution())
    assert loaded.likelihood.class_dim is None
    assert loaded.likelihood.ignore_index == 255
    assert tacit.predict(loaded, x).probs.shape == (2, 4, 5, 3)
    given = tacit.Categorical(class_dim=1)
    model = tacit.variational(convolution(), rank=2, likelihood=given)
    loaded = tacit.load(tacit.save(model, tmp_path / "m.safetensors"), convolution())
    assert loaded.likelihood.class_dim == 1


def test_temperatures_per_class_are_saved(tmp_path):
    model = tacit.variational(nn.Linear(4, 3), rank=2, likelihood=tacit.Categorical())
    model.likelihood.set_temperature(torch.tensor([1.0, 2.0, 3.0]), "mean", torch.arange(3.0))
    loaded = tacit.load(tacit.save(model, tmp_path / "model.safetensors"), nn.Linear(4, 3))
    assert_close(loaded.likelihood.temperature, torch.tensor([1.0, 2.0, 3.0]))
    assert_close(loaded.likelihood.offset, torch.arange(3.0))
    assert loaded.likelihood.scope == "mean"


@pytest.mark.parametrize(
    ("temperature", "offset"), [([1.0, 2.0, 3.0], 0.5), (2.0, [0.0, 1.0, 2.0])]
)
def test_one_temperature_with_several_offsets_and_the_reverse(temperature, offset, tmp_path):
    model = tacit.variational(nn.Linear(4, 3), rank=2, likelihood=tacit.Categorical())
    model.likelihood.set_temperature(torch.tensor(temperature), "mean", torch.tensor(offset))
    loaded = tacit.load(tacit.save(model, tmp_path / "m.safetensors"), nn.Linear(4, 3))
    assert loaded.likelihood.temperature.tolist() == temperature
    assert loaded.likelihood.offset.tolist() == offset


def test_layers_chosen_by_a_glob_of_parameters(tmp_path):
    model = tacit.variational(net(), {"0.*": tacit.LowRank(2), "2.w*": tacit.LowRank(1)})
    other = tacit.load(tacit.save(model, tmp_path / "m.safetensors"), net())
    assert_close(sampled(other), sampled(model), rtol=0, atol=0)
    recurrent = tacit.variational(nn.GRU(4, 4), {"weight_*": tacit.LowRank(1)})
    with pytest.raises(TypeError, match="weight_hh_l0 were chosen jointly by a glob, which a file"):
        tacit.save(recurrent, tmp_path / "m.safetensors")


def test_a_rebuilt_network_has_the_precision_of_the_file(tmp_path):
    model = tacit.variational(tacit.models.MLP(4, [8], 3).double(), rank=2)
    other = tacit.load(tacit.save(model, tmp_path / "m.safetensors"))
    assert_close(other.eval()(X.double()), model.eval()(X.double()), rtol=0, atol=0)


def test_a_likelihood_in_double_precision_is_loaded_in_it(tmp_path):
    likelihood = tacit.Categorical()
    model = tacit.variational(net(), rank=2, likelihood=likelihood).double()
    likelihood.set_temperature(1 / 3)
    other = tacit.load(tacit.save(model, tmp_path / "m.safetensors"), net().double())
    assert torch.equal(other.likelihood.temperature, model.likelihood.temperature)
    assert other.likelihood.temperature.dtype == torch.float64


def test_networks_with_sizes_from_numpy_are_saved(tmp_path):
    net = tacit.models.MLP(np.int64(4), np.array([8, 8]), np.int32(3))
    model = tacit.variational(net, rank=2)
    assert_close(sampled(tacit.load(tacit.save(model, tmp_path / "m"))), sampled(model))


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

    def test_a_custom_likelihood_cannot_be_saved(self, tmp_path):
        class Own(tacit.Categorical):
            pass

        model = tacit.variational(net(), rank=2, likelihood=Own())
        with pytest.raises(TypeError, match=r"expected one of Categorical.*model\.state_dict"):
            tacit.save(model, tmp_path / "m")

    def test_a_failed_write_keeps_the_old_file(self, path, monkeypatch):
        before = path.read_bytes()

        def full(*args, **kwargs):
            raise OSError("No space left on device")

        monkeypatch.setattr("tacit._support.files.save_file", full)
        with pytest.raises(OSError, match="could not be written: No space left"):
            tacit.save(tacit.variational(net(), rank=2), path)
        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]

    def test_preprocessing_must_be_serialisable(self, tmp_path):
        model = tacit.variational(net(), rank=2)
        for given in ({"mean": np.float32(0.5)}, {"mean": torch.zeros(3)}, {(1, 2): 3}):
            with pytest.raises(TypeError, match="preprocessing: expected JSON-serialisable data"):
                tacit.save(model, tmp_path / "m", preprocessing=given)
        with pytest.raises(TypeError, match=r"preprocessing: expected a dict, received \[1\]"):
            tacit.save(model, tmp_path / "m", preprocessing=[1])

    def test_class_names_that_dont_fit_are_refused_before_saving(self, tmp_path):
        likelihood = tacit.Categorical(["a", "b"])
        model = tacit.variational(tacit.models.MLP(4, [8], 3), rank=2, likelihood=likelihood)
        with pytest.raises(ValueError, match="number of classes, received class_names 2, .* 3"):
            tacit.save(model, tmp_path / "m")


def rewritten(path, change):
    """Change header and tensors of a file as someone else might, without a checksum."""
    with safe_open(path, framework="pt") as file:
        ((key, text),) = ((k, v) for k, v in file.metadata().items() if k != files.CHECKSUM)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header = json.loads(text)
    change(header, tensors)
    save_file(tensors, path, metadata={key: json.dumps(header)})
    return path


def put(*place):
    """Return a change that sets an entry of the header: names, then the value."""
    *parents, last, value = place

    def change(header, tensors):
        for parent in parents:
            header = header[parent]
        header[last] = value

    return change


def put_tensor(name, value):
    return lambda header, tensors: tensors.update({name: torch.tensor(value)})


class TestFilesMadeByOthers:
    @pytest.fixture
    def path(self, tmp_path):
        likelihood = tacit.Categorical(["a", "b", "c"], class_weights=[1, 2, 3])
        where = {"1": tacit.LowRank(2), "3": tacit.FullRank()}
        model = tacit.variational(tacit.models.MLP(4, [8], 3), where, likelihood=likelihood)
        return tacit.save(model, tmp_path / "m.safetensors")

    @pytest.fixture(params=["ResNet18", "ViT"])
    def images(self, request, tmp_path):
        sizes = {"ResNet18": {"width": 4}, "ViT": {"width": 4, "depth": 1, "heads": 1}}
        net = tacit.models.MODELS[request.param](3, **sizes[request.param])
        return tacit.save(tacit.variational(net, rank=1), tmp_path / "m.safetensors")

    @pytest.mark.parametrize(
        "source", ["imagenet", "secret.pth", "/etc/passwd", "http://x/y", True]
    )
    def test_pretrained_opens_nothing(self, source, images, tmp_path, monkeypatch):
        def refuse(*args, **kwargs):
            raise AssertionError("opened")

        expected = tacit.load(images).state_dict()
        for name in ("read_weights", "torchvision_weights"):
            monkeypatch.setattr(f"tacit.models.pretrained.{name}", refuse)
        rewritten(images, put("network", "arguments", "pretrained", source))
        found = tacit.load(images).state_dict()
        assert all(torch.equal(found[name], expected[name]) for name in expected)

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (put("network", "arguments", "hidden", [8_000]), r"hidden|expected an integer from 1"),
            (put("network", "arguments", "hidden", [9]), r"'1.bias' is \(9,\) in the model"),
            (put("network", "arguments", "hidden", [8] * 10**5), "length of hidden"),
            (put("network", "arguments", "hidden", "8"), "describes no MLP: MLP: expected an int"),
            (put("network", "arguments", "hidden", 8), r"no MLP: MLP\(hidden\): expected a list"),
            (put("network", "arguments", "hidden", [8.0]), r"header\[0\]: expected an integer"),
            (put("network", "arguments", "inputs", 10**9), r"\['inputs'\]: expected an integer"),
            (put("network", "arguments", "inputs", True), r"\['inputs'\]: expected an integer"),
            (put("network", "arguments", "device", "cuda"), "describes no MLP: .* unexpected"),
            (put("network", "arguments", {}), "describes no MLP: .* missing"),
            (put("network", "arguments", []), r"\['arguments'\]: expected an object"),
            (put("network", "kind", "Path"), "holds a Path, which is not in tacit.models"),
            (put("network", "kind", ["MLP"]), r"\['kind'\]: expected a string"),
            (put("network", None), r"\['network'\]: expected an object, received None"),
            (put("layers", "1", "rank", 40), r"'factors.1.bias' is \(40, 8\) in the model"),
            (put("layers", "1", "rank", 2.0), r"\['rank'\]: expected an integer"),
            (put("layers", "1", "rank", 10**9), "rank can be at most"),
            (put("layers", "1", "scale", -1), "LowRank can't be built: .* above 0"),
            (put("layers", "1", "scale", 10**400), r"\['scale'\]: expected a number from"),
            (put("layers", "1", "x", 1), "no entries except kind, rank, scale, received 'x'"),
            (put("layers", "1", {"kind": "FullRank"}), r"'factors.1.bias' is \(40, 8\)"),
            (put("layers", "1", {"kind": "Own"}), r"\['kind'\]: expected one of LowRank"),
            (put("layers", "1", {"rank": 2}), r"header\['layers'\]\['1'\]: 'kind' is missing"),
            (put("layers", {"*": {"kind": "LowRank", "rank": 2}}), r"no layer matches '\*'"),
            (put("layers", {"7": {"kind": "LowRank", "rank": 2}}), "no layer matches '7'"),
            (put("layers", {}), "no layer is named"),
            (put("layers", []), r"\['layers'\]: expected an object"),
            (put("noise", {"kind": "StudentT", "df": 1}), "StudentT can't be built: .* above 2"),
            (put("noise", {"kind": "StudentT"}), "'df' is missing"),
            (put("noise", {"kind": "os.system"}), "expected one of Gaussian, Laplace, StudentT"),
            (put("draws", 0), r"\['draws'\]: expected an integer from 1"),
            (put("draws", "1"), r"\['draws'\]: expected an integer from 1"),
            (put("preprocessing", [1]), r"\['preprocessing'\]: expected an object"),
            (put("surprise", 1), "expected no entries except .*, received 'surprise'"),
            (put("likelihood", "kind", "Poisson"), "expected one of Categorical, Bernoulli, Gauss"),
            (put("likelihood", "per_class", 10**9), "per_class is 1000000000 in the header"),
            (put("likelihood", "offsets", 10**9), "offsets is 1000000000 in the header"),
            (put("likelihood", "knots", [9, 2, 9]), r"'likelihood.knots' is \(9, 2, 9\)"),
            (put_tensor("likelihood.knots", [[0.0, 1.0], [1.0, 0.0]]), "missing in the model"),
            (put("likelihood", "scope", "all"), "expected one of logits, mean, received 'all'"),
            (put("likelihood", "averaging", "x"), "expected one of log_probs, probs, logits"),
            (put("likelihood", "label_smoothing", 2), r"\['label_smoothing'\]: expected a number"),
            (put("likelihood", "class_dim", 0), "class_dim: expected 1, -1 or None, received 0"),
            (put("likelihood", "class_dim", 2), r"\['class_dim'\]: expected an integer from -1"),
            (put("likelihood", "ignore_index", 0.5), r"\['ignore_index'\]: expected an integer"),
            (put_tensor("likelihood.found_class_dim", 2), "must be 1, -1, or 0 for unknown"),
            (put("likelihood", "class_names", ["a"]), "number of classes, received class_names 1,"),
            (put("likelihood", "class_names", []), "number of classes, received class_names 0,"),
            (put("likelihood", "class_names", [1, 2, 3]), r"\[0\]: expected a string"),
            (put("likelihood", "class_weights", [1, 2]), "received .* class_weights 2,"),
            (put("likelihood", "class_weights", [1, 2, -3]), "expected a number from 0"),
            (put_tensor("likelihood.temperature", -1.0), "must hold finite numbers above 0"),
            (put_tensor("likelihood.temperature", 0.0), "must hold finite numbers above 0"),
            (put_tensor("likelihood.temperature", math.nan), "must hold finite numbers above 0"),
            (put_tensor("likelihood.temperature", math.inf), "must hold finite numbers above 0"),
            (put_tensor("likelihood.temperature", [1.0, 1.0]), "per_class is 0 in the header"),
            (put_tensor("likelihood.offset", math.nan), "must hold finite numbers of any sign"),
            (put_tensor("likelihood.class_weights", [1.0, -1.0, 1.0]), "numbers of at least 0"),
            (put_tensor("module.1.bias", [1] * 8), "'module.1.bias' is torch.float32"),
            (lambda header, tensors: header.pop("noise"), "header: 'noise' is missing"),
            (lambda header, tensors: tensors.pop("module.1.bias"), r"\(8,\) .* missing"),
        ],
    )  # fmt: skip
    def test_what_doesnt_fit_is_refused(self, change, match, path):
        with pytest.raises(ValueError, match=match) as caught:
            tacit.load(rewritten(path, change))
        assert "m.safetensors" in str(caught.value) or "load: " in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("width", 10**5),
            ("width", 10**12),
            ("classes", 10**9),
            ("depth", 10**9),
            ("size", 10**5),
        ],
    )
    def test_large_networks_are_refused_before_they_are_built(self, name, value, images):
        rewritten(images, put("network", "arguments", name, value))
        with peak_memory() as peak, pytest.raises(ValueError, match=r"m.safetensors"):
            tacit.load(images)
        assert not peak() > 500e6  # what is described would take gigabytes

    def test_large_factors_are_refused_before_they_are_allocated(self, tmp_path):
        net = nn.Linear(300, 300)
        path = tacit.save(
            tacit.variational(net, {"": tacit.LowRank(1)}), tmp_path / "m.safetensors"
        )
        full = {"kind": "FullRank", "max_gigabytes": 1e9}
        for given in (full, {"kind": "LowRank", "rank": 90_000}):  # 32 GB
            rewritten(path, put("layers", "", given))
            with peak_memory() as peak, pytest.raises(ValueError, match=r"'factors.bias' is \(9"):
                tacit.load(path, net)
            assert not peak() > 500e6  # what is described would take gigabytes


def test_saving_and_loading_never_use_pickle(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("pickle")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    path = tacit.save(tacit.variational(net(), rank=2), tmp_path / "m.safetensors")
    header = path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")]
    assert "tacit_model" in json.loads(header)["__metadata__"]
    tacit.load(path, net())
