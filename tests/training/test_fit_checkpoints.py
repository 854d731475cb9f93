"""Checkpoint files: how many are kept, and what happens to damaged ones and on full disks."""

import contextlib
import subprocess

import pytest
from torch.testing import assert_close

import tacit
from training.fit_problem import fit, make_model, weights


def test_the_newest_two_checkpoints_are_kept(tmp_path):
    fit(make_model(), epochs=5, checkpoint=tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-000000000024.safetensors", "step-000000000030.safetensors"]


def test_incomplete_files_of_killed_processes_are_removed(tmp_path):
    (tmp_path / ".step-000000000006.safetensors.1").write_bytes(b"half")
    fit(make_model(), epochs=1, checkpoint=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000006.safetensors"]


def test_the_older_checkpoint_is_used_if_the_newest_is_truncated(tmp_path):
    fit(make_model(), epochs=3, checkpoint=tmp_path)
    newest = max(tmp_path.iterdir())
    newest.write_bytes(newest.read_bytes()[:-1000])
    whole, rest = make_model(), make_model()
    fit(whole, epochs=3)
    fit(rest, epochs=3, checkpoint=tmp_path)
    assert_close(weights(rest), weights(whole), rtol=0, atol=0)


def test_an_unreadable_checkpoint_is_named(tmp_path):
    (tmp_path / "step-000000000001.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"step-000000000001.safetensors can't be read"):
        fit(make_model(), checkpoint=tmp_path)


def test_a_file_of_another_origin_raises_an_error(tmp_path):
    tacit.save(make_model(), tmp_path / "step-000000000001.safetensors")
    with pytest.raises(ValueError, match=r"was not written by tacit.fit"):
        fit(make_model(), checkpoint=tmp_path)


def test_a_simulated_full_disk_keeps_existing_checkpoints(tmp_path, monkeypatch):
    fit(make_model(), epochs=2, checkpoint=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(tensors, path, metadata):
        path.write_bytes(b"half a file")
        raise OSError("No space left on device")

    monkeypatch.setattr("tacit._support.files.save_file", full)
    with pytest.raises(OSError, match="could not be written: No space left"):
        fit(make_model(), epochs=3, checkpoint=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_keeps_existing_checkpoints(tmp_path):
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        fit(make_model(), epochs=2, checkpoint=tmp_path)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        (tmp_path / "filler").write_bytes(b"")
        with contextlib.suppress(OSError), (tmp_path / "filler").open("wb") as file:
            while True:
                file.write(bytes(1024))
                file.flush()
        with pytest.raises(OSError, match="could not be written: .*[Nn]o space left"):
            fit(make_model(), epochs=3, checkpoint=tmp_path)
        (tmp_path / "filler").unlink()
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        whole, parts = make_model(), make_model()
        fit(whole, epochs=3)
        fit(parts, epochs=3, checkpoint=tmp_path)
        assert_close(weights(parts), weights(whole), rtol=0, atol=0)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
