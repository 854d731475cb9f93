"""The scale "paper" on photographs, end to end: small files in the published formats."""

import io
import tarfile
import zipfile
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

import tacit
from tacit.data import cifar, tiny_imagenet_sets
from tacit.data.sources import Url
from tacit.studies.bench import read_results
from tacit.studies.experiments import comparison, gpu_hours
from tacit.studies.experiments.page import write_page
from tacit.studies.experiments.registry import EXPERIMENTS
from tacit.studies.experiments.reproduction import judge, read_saved, reproduce

RANDOM = np.random.default_rng(0)
DATA = ("cifar10", "cifar100", "tiny_imagenet")


def pixels(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def cifar_file(labels, size):
    """Return a file of CIFAR's binary format: label bytes, the class last, and pixels."""
    rows = [bytes([*[0] * (labels - 1), i % 10]) + pixels(3072).tobytes() for i in range(size)]
    return b"".join(rows)


def write_tar(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_zip(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def jpeg():
    stream = io.BytesIO()
    Image.fromarray(pixels(64, 64, 3)).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """Put small archives where downloads are, and accept their digests."""
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "data"))
    files = {}
    parts = [f"data_batch_{i}" for i in range(1, 6)]
    files["cifar10", "cifar-10-binary.tar.gz"] = {
        f"cifar-10-batches-bin/{name}.bin": cifar_file(1, 4) for name in (*parts, "test_batch")
    }
    files["cifar100", "cifar-100-binary.tar.gz"] = {
        f"cifar-100-binary/{name}.bin": cifar_file(2, 20) for name in ("train", "test")
    }
    classes = [f"n{i:02}" for i in range(10)]
    annotations = "".join(f"val_{i}.JPEG\t{name}\t0\n" for i, name in enumerate(classes))
    files["tiny_imagenet", "tiny-imagenet-200.zip"] = {
        **{f"tiny-imagenet-200/train/{n}/images/{n}_{i}.JPEG": jpeg()
           for n in classes for i in range(2)},
        **{f"tiny-imagenet-200/val/images/val_{i}.JPEG": jpeg() for i in range(10)},
        "tiny-imagenet-200/val/val_annotations.txt": annotations.encode(),
    }  # fmt: skip
    for (folder, name), content in files.items():
        path = tmp_path / "data" / "downloads" / folder / name
        path.parent.mkdir(parents=True)
        (write_zip if name.endswith("zip") else write_tar)(path, content)
    for module, name in (
        (cifar, "CIFAR10"), (cifar, "CIFAR100"), (tiny_imagenet_sets, "TINY_IMAGENET")
    ):  # fmt: skip
        recipe = getattr(module, name)
        (url, decode), *_ = recipe.sources
        assert isinstance(url, Url)
        unchecked = replace(url, files=tuple((file, None) for file, _ in url.files))
        changed = replace(recipe, sources=((unchecked, decode),), sha256=None)
        monkeypatch.setattr(module, name, changed)


@pytest.fixture
def narrow(monkeypatch):
    """Make the networks an eighth as wide, torchvision's weights for them included."""
    published = tacit.models.ResNet34(1000, norm="batch", stem="imagenet", width=8).state_dict()
    weights = {"resnet34": published}
    monkeypatch.setattr("tacit.models.pretrained.torchvision_weights", weights.__getitem__)
    for name in DATA:
        problem = getattr(comparison, name)
        narrower = replace(problem, make_net=partial(problem.make_net, width=8))
        monkeypatch.setattr(comparison, name, narrower)


@pytest.mark.usefixtures("archives", "narrow")
@pytest.mark.parametrize(
    "methods",
    [
        pytest.param(("temperature_scaling", comparison.PAPER), id="some methods"),
        pytest.param(None, id="all methods", marks=pytest.mark.slow),
    ],
)
def test_photographs_at_the_papers_scale(methods, tmp_path):
    out = tmp_path / "results" / "paper"
    changes = {
        "epochs": 2, "seeds": 1, "slow_seeds": 1, "parametrizations": ("sp",), "test_size": 4,
        "corrupted_size": 1, "samples": 2, "jobs": 1,
    }  # fmt: skip
    if methods:
        changes |= {"methods": methods, "slow_methods": ()}
    for name in ("in_distribution", "corruptions"):
        experiment = EXPERIMENTS[name]
        reproduce(experiment, "paper", out / name, data=DATA, **changes)
        saved = read_saved(out / name)
        rows = saved["results"]["rows"]
        assert {comparison.short(row["data"]) for row in rows} == set(DATA)
        given = saved["arguments"]
        assert len(rows) == 3 * (len(given["methods"]) + len(given["slow_methods"]))
        assert all(number is not None for row in rows for number in row["numbers"].values())
        verdicts = judge(experiment, out / name)
        assert {verdict.claim for verdict in verdicts} == set(experiment.claims)
        assert all(verdict.holds is None for verdict in verdicts if not verdict.ours)
    for found in read_results(out / "bench"):
        assert len(found["corrupted"]) == 15
        assert found["cell"].lr == 0.005
    # The plain network is shared by all methods that start from one, of an ensemble the first.
    saved = list((out / "bench" / "networks").glob("*/*.safetensors"))
    assert len(saved) == 3 * (1 if methods else 5)
    text = write_page(out).with_suffix(".md").read_text()
    assert "paper (cifar10, cifar100, tiny_imagenet)" in text
    assert "--data cifar10,cifar100,tiny_imagenet" in text


@pytest.mark.parametrize(
    ("name", "classes", "size"), [("cifar10", 10, 32), ("tiny_imagenet", 200, 64)]
)
def test_the_estimate_counts_the_operations_of_the_network(name, classes, size):
    net = tacit.models.ResNet34(classes, norm="group")
    with FlopCounterMode(display=False) as counter:
        net(torch.zeros(1, 3, size, size)).sum().backward()
    assert counter.get_total_flops() == pytest.approx(gpu_hours.OPERATIONS[name], rel=1e-3)
    assert gpu_hours.passes_per_image() == 2 * (5 * (5 + 2) + 2 * 8)
