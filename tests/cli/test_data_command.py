"""The command, with small stand-ins for the datasets."""

import pytest
import torch

from tacit.cli import main
from tacit.data import cache, catalog
from tacit.data.sources import Url

TENSORS = {"x": torch.arange(3)}


class Local(Url):
    def fetch(self, folder):
        return []


LOCAL = Local("", ())
GONE = Url("http://no-such-host.invalid/", (("file", None),))


@pytest.fixture
def stand_in(monkeypatch):
    """Return a function that replaces MNIST by three numbers."""

    def replace(source=LOCAL, sha256=None):
        recipe = cache.Recipe("mnist", "stand-in", 1, ((source, lambda paths: TENSORS),), sha256)
        monkeypatch.setitem(catalog.CATALOG, "mnist", recipe)

    return replace


def data(*arguments):
    return main(["data", *map(str, arguments)])


def test_list_shows_what_is_on_this_machine(tmp_path, capsys):
    (tmp_path / "mnist.safetensors").touch()
    assert data("list", "--root", tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if " mnist " in line).split()[-2] == "yes"
    assert next(line for line in lines if " cifar10 " in line).split()[-2] == "no"
    assert "0 of 15" in next(line for line in lines if " tiny_imagenet_c " in line)


def test_path_prints_where_a_dataset_belongs(tmp_path, capsys):
    assert data("path", "mnist", "--root", tmp_path) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "mnist.safetensors")


def test_a_family_has_a_path_per_corruption(tmp_path, capsys):
    assert data("path", "cifar10_c", "--root", tmp_path) == 0
    assert len(capsys.readouterr().out.splitlines()) == 15


def test_fetched_content_is_verified(tmp_path, capsys, stand_in):
    stand_in(sha256=cache.content_digest(TENSORS))
    assert data("fetch", "mnist", "--root", tmp_path) == 0
    assert capsys.readouterr().out == f"mnist: {tmp_path / 'mnist.safetensors'}\n"
    assert data("verify", "--root", tmp_path) == 0
    assert capsys.readouterr().out == "mnist: ok\n"


def test_other_content_fails_the_verification(tmp_path, capsys, stand_in):
    stand_in()
    assert data("fetch", "mnist", "--root", tmp_path) == 0
    stand_in(sha256="0" * 64)
    assert data("verify", "--root", tmp_path) == 3
    assert "mnist: wrong content: expected SHA-256" in capsys.readouterr().out


def test_a_source_that_does_not_answer_sets_the_exit_code(tmp_path, capsys, stand_in):
    stand_in(GONE)
    assert data("fetch", "mnist", "--root", tmp_path) == 3
    assert "could not be fetched" in capsys.readouterr().err


def test_unknown_datasets_are_rejected(capsys):
    assert data("path", "imagenet") == 2
    assert "data: expected one of mnist, " in capsys.readouterr().err


def test_a_root_that_is_a_file_is_reported_in_one_line(tmp_path, capsys, stand_in):
    stand_in()
    (tmp_path / "file").touch()
    assert data("fetch", "mnist", "--root", tmp_path / "file") == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
