"""Random damage to saved models and predictors: equal to the original, or a clear error."""

import copy
import json
import random
import resource
from pathlib import Path

import pytest
import torch

import tacit
from tacit._support import files
from tacit.methods import SWAG, DeepEnsemble, Laplace, MCDropout, Standard

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3
SETTINGS = {"epochs": 2, "lr": 0.05, "batch_size": 6, "progress": False}
GIGABYTE = 2**30
HUGE = [10**6, 10**9, 2**31 - 1, 2**31, 2**62, 2**63, 10**30, 10**400, 1e308, -1, -1e9, 0]
OTHERS = [
    None, True, False, "", "x", "../../etc/passwd", "imagenet", [], [1], {}, {"a": 1}, 0.5, 1, 2, 3,
    7, float("nan"), float("inf"), "\ud800", [[[]]], *HUGE,
]  # fmt: skip


def mlp():
    return tacit.models.MLP(4, [6], 3)


def model_file(path):
    where = {"1": tacit.LowRank(2), "3": tacit.FullRank()}
    likelihood = tacit.Categorical(["a", "b", "c"], class_weights=[1, 2, 3])
    model = tacit.variational(mlp(), where, likelihood=likelihood, noise=tacit.noise.StudentT(5))
    return tacit.save(model, path, preprocessing={"mean": 0.5})


def vit_file(path):
    net = tacit.models.ViT(3, 1, size=4, patch=2, width=4, depth=2, heads=2, mlp=5)
    model = tacit.variational(net, rank=1, likelihood=tacit.Bernoulli())
    return tacit.save(model, path)


def predictor_file(method):
    return lambda path: tacit.methods.save(method.fit(mlp, (X, Y), (X, Y), **SETTINGS), path)


KINDS = {
    "model": (model_file, tacit.load),
    "vit": (vit_file, tacit.load),
    "Standard": (predictor_file(Standard()), tacit.methods.load),
    "DeepEnsemble": (predictor_file(DeepEnsemble(2)), tacit.methods.load),
    "ImplicitBiasVI": (predictor_file(tacit.methods.ImplicitBiasVI()), tacit.methods.load),
    "Laplace": (predictor_file(Laplace()), tacit.methods.load),
    "MCDropout": (predictor_file(MCDropout()), tacit.methods.load),
    "SWAG": (predictor_file(SWAG()), tacit.methods.load),
}


@pytest.fixture(scope="module", params=KINDS)
def saved(request, tmp_path_factory):
    write, load = KINDS[request.param]
    torch.manual_seed(0)
    path = write(tmp_path_factory.mktemp("files") / f"{request.param}.safetensors")
    return path, load


@pytest.fixture(autouse=True)
def _limited_memory():
    """Let no load take more than 2 GB beyond what the process already has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + 2 * GIGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def outcome(load, path):
    """Return what was loaded, or None after an error with a message."""
    problem = None
    try:
        return load(path)
    except (ValueError, OSError) as error:
        problem = error
    assert type(problem) in (ValueError, OSError, FileNotFoundError)
    assert path.name in str(problem) or str(problem).startswith("load: ")
    return None


def state(found):
    return (
        found.tensors()
        if isinstance(found, tacit.inference.functions.Predictor)
        else found.state_dict()
    )


def assert_equal(found, original):
    a, b = state(found), state(original)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def parts(content):
    """Return the header of a safetensors file as data, and its tensors as bytes."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def joined(header, rest):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


def places(data, path=()):
    """Return the paths of all entries of nested data."""
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in list(items):
        yield (*path, key)
        yield from places(value, (*path, key))


def damaged_data(data, rng):
    """Return nested data with one entry replaced, deleted or added."""
    data = copy.deepcopy(data)
    *parents, key = rng.choice(list(places(data)))
    owner = data
    for parent in parents:
        owner = owner[parent]
    action = rng.random()
    if action < 0.2:
        del owner[key]
    elif action < 0.3 and isinstance(owner, dict):
        owner[rng.choice(["pretrained", "shapes", "x", "kind"])] = rng.choice(OTHERS)
    elif action < 0.35:
        return rng.choice(OTHERS)
    else:
        owner[key] = rng.choice(OTHERS)
    return data


def damaged_bytes(content, rng):
    """Return content truncated, extended, or with some bytes changed."""
    content = bytearray(content)
    action = rng.random()
    if action < 0.2:
        return bytes(content[: rng.randrange(len(content))])
    if action < 0.25:
        return bytes(content) + rng.randbytes(rng.randrange(1, 20))
    for _ in range(rng.choice([1, 1, 1, 5, 50])):
        region = len(content) if rng.random() < 0.5 else min(len(content), 1500)
        content[rng.randrange(region)] ^= 1 << rng.randrange(8)
    return bytes(content)


def test_accidents_are_noticed(saved, tmp_path):
    path, load = saved
    content, original, rng = path.read_bytes(), load(path), random.Random(0)
    key = next(name for name in parts(content)[0]["__metadata__"] if name != files.CHECKSUM)
    other, refused = tmp_path / "damaged.safetensors", 0
    for i in range(60):
        if i % 3:
            other.write_bytes(damaged_bytes(content, rng))
        else:
            header, rest = parts(content)
            data = damaged_data(json.loads(header["__metadata__"][key]), rng)
            header["__metadata__"][key] = json.dumps(data)
            other.write_bytes(joined(header, rest))
        found = outcome(load, other)
        refused += found is None
        if found is not None:
            assert_equal(found, original)
    assert refused > 50


def test_headers_made_up_by_others_cause_no_harm(saved, tmp_path, monkeypatch):
    # Without a checksum, so that the schema and the sizes are what is checked.
    def refuse(*args, **kwargs):
        raise AssertionError("a file made the library read another one")

    monkeypatch.setattr("tacit.models.pretrained.read_weights", refuse)
    monkeypatch.setattr("tacit.models.pretrained.torchvision_weights", refuse)
    path, load = saved
    (header, rest), original, rng = parts(path.read_bytes()), load(path), random.Random(1)
    del header["__metadata__"][files.CHECKSUM]
    key = next(iter(header["__metadata__"]))
    other, refused = tmp_path / "damaged.safetensors", 0
    for i in range(120):
        data, tensors = json.loads(header["__metadata__"][key]), header
        if i % 4:
            data = damaged_data(data, rng)
        else:
            tensors = damaged_data({**header, "__metadata__": {}}, rng)
        if isinstance(tensors, dict) and isinstance(tensors.get("__metadata__"), dict):
            tensors = {**tensors, "__metadata__": {key: json.dumps(data)}}
        other.write_bytes(joined(tensors, rest))
        found = outcome(load, other)
        refused += found is None
        if found is not None:  # settings may have changed, for instance the number of draws
            assert state(found).keys() == state(original).keys()
            x = X[:1].view(1, 1, 2, 2).repeat(1, 1, 2, 2) if path.stem == "vit" else X
            assert len(tacit.predict(found, x, samples=2).probs) == len(x)
    assert refused > 60
