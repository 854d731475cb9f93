"""Files that are filled in place."""

import os

import pytest
import torch

from tacit._support import files
from tacit._support.mapped_files import create

SPECS = {"pixels": (torch.uint8, (3, 5)), "numbers": (torch.float64, (2,))}


def test_what_was_filled_in_is_read(tmp_path):
    path = tmp_path / "x.safetensors"
    with create(path, "tacit_test", {"name": "x"}, SPECS) as tensors:
        assert tensors["pixels"].sum() == 0
        tensors["pixels"][1:] = torch.arange(10, dtype=torch.uint8).reshape(2, 5)
        tensors["numbers"].copy_(torch.tensor([0.1, 0.2], dtype=torch.float64))
        assert not path.exists()
    header, found = files.read(path, "tacit_test", "a test")
    assert header["name"] == "x"
    assert found["pixels"].tolist() == [[0] * 5, [*range(5)], [*range(5, 10)]]
    assert found["numbers"].tolist() == [0.1, 0.2]
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]


def test_nothing_is_left_after_an_error(tmp_path):
    def fail():
        with create(tmp_path / "x", "tacit_test", {}, SPECS):
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_a_full_disk(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        pytest.raises(OSError, match=r"needs 0 MB \(\[Errno 28\] No space left"),
        create(tmp_path / "x", "tacit_test", {}, SPECS),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
