"""Checkpoint files: how many are kept, and what happens to damaged ones and on full disks."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from torch.testing import assert_close

import tacit
from tacit.training import checkpoints as files
from training.fit_problem import fit, make_model, weights


def checkpoints(folder):
    return list(folder.glob("step-*"))


def test_the_newest_two_checkpoints_are_kept(tmp_path):
    fit(make_model(), epochs=5, checkpoint=tmp_path)
    names = sorted(path.name for path in checkpoints(tmp_path))
    assert names == ["step-000000000024.safetensors", "step-000000000030.safetensors"]


def test_incomplete_files_of_killed_processes_are_removed(tmp_path):
    (tmp_path / ".step-000000000006.safetensors.0f.tmp").write_bytes(b"half")
    fit(make_model(), epochs=1, checkpoint=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "step-000000000006.safetensors"}


def test_the_older_checkpoint_is_used_if_the_newest_is_truncated(tmp_path):
    fit(make_model(), epochs=3, checkpoint=tmp_path)
    newest = max(checkpoints(tmp_path))
    newest.write_bytes(newest.read_bytes()[:-1000])
    whole, rest = make_model(), make_model()
    fit(whole, epochs=3)
    fit(rest, epochs=3, checkpoint=tmp_path)
    assert_close(weights(rest), weights(whole), rtol=0, atol=0)


def with_header(path, change):
    """Write a checkpoint again, without a checksum, with a changed header."""
    with safe_open(path, framework="pt") as file:
        text = file.metadata()[files.KEY]
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={files.KEY: change(text)})


def without(key):
    def change(text):
        header = json.loads(text)
        del header[key]
        return json.dumps(header)

    return change


DAMAGED = [
    lambda text: "{}",
    lambda text: "[1, 2]",
    lambda text: "no JSON",
    lambda text: json.dumps({**json.loads(text), "epoch": "one"}),
    lambda text: json.dumps({**json.loads(text), "random": []}),
    *map(without, ["settings", "history", "optimizer", "random", "precision", "done", "step"]),
]


@pytest.mark.parametrize("change", DAMAGED)
def test_the_older_checkpoint_is_used_if_the_newest_header_is_damaged(change, tmp_path):
    fit(make_model(), epochs=2, checkpoint=tmp_path)
    older, newest = sorted(checkpoints(tmp_path))
    with_header(newest, change)
    assert files.read_newest(tmp_path).data["epoch"] == 1
    with_header(older, change)
    with pytest.raises(ValueError, match="no checkpoint in .* can be read: .*step-0000000000"):
        fit(make_model(), epochs=2, checkpoint=tmp_path)
    assert len(fit(make_model(), epochs=1, checkpoint=tmp_path, resume="never")) == 1


def test_the_older_checkpoint_is_used_if_a_random_state_is_missing(tmp_path):
    fit(make_model(), epochs=2, checkpoint=tmp_path)
    newest = max(checkpoints(tmp_path))
    with safe_open(newest, framework="pt") as file:
        metadata = {files.KEY: file.metadata()[files.KEY]}
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    del tensors["random.0.numpy"]
    save_file(tensors, newest, metadata=metadata)
    assert files.read_newest(tmp_path).data["epoch"] == 1


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_lasts(tmp_path):
    """Also from within: a callback that trains into the same folder."""
    found = []

    def train_again(row, model):
        with pytest.raises(RuntimeError, match="another run is using .*use another folder") as e:
            fit(make_model(), epochs=1, lr=0.1, checkpoint=tmp_path)
        found.append(e)

    fit(make_model(), epochs=2, checkpoint=tmp_path, callbacks=[train_again])
    assert len(found) == 2
    assert len(fit(make_model(), epochs=3, checkpoint=tmp_path)) == 3  # free again


HOLDER = """
import sys, time
from pathlib import Path
from tacit.training.checkpoints import acquire
lock = acquire(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_another_process_is_refused_at_once_and_a_killed_one_leaves_the_folder_free(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        start = time.perf_counter()
        with pytest.raises(RuntimeError, match="another run is using"):
            fit(make_model(), checkpoint=tmp_path)
        assert time.perf_counter() - start < 5
        assert not checkpoints(tmp_path)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert len(fit(make_model(), epochs=1, checkpoint=tmp_path)) == 1


def test_a_refused_run_leaves_temporary_files_and_the_model_alone(tmp_path):
    lock = files.acquire(tmp_path)
    temporary = tmp_path / ".step-000000000006.safetensors.0f.tmp"
    temporary.write_bytes(b"being written")
    model = make_model()
    model.likelihood.set_temperature(3.0)
    with pytest.raises(RuntimeError, match="another run is using"):
        fit(model, checkpoint=tmp_path, resume="never")
    assert temporary.exists()
    assert model.likelihood.temperature == 3
    lock.release()


def test_a_file_as_checkpoint_folder_raises_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="checkpoint: expected a folder, but .* is a file"):
        fit(make_model(), checkpoint=Path(tmp_path / "file"))


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

    def full(file, *args, **kwargs):
        file.write(b"half a file")
        raise OSError("No space left on device")

    monkeypatch.setattr("tacit._support.files.save_file", full)
    with pytest.raises(OSError, match="could not be written: No space left"):
        fit(make_model(), epochs=3, checkpoint=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_keeps_existing_checkpoints(tmp_path):
    mounted = ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(tmp_path)]
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
