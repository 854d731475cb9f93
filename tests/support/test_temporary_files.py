import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from tacit._support import files
from tacit._support.temporary_files import SUFFIX, clean_stale, replacing

TENSORS = {"a": torch.arange(6.0)}

# Writes half of a file, says so, and waits to be killed or told to go on.
HALF_A_FILE = """
import sys
from pathlib import Path
from tacit._support.temporary_files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("half", flush=True)
    sys.stdin.readline()
    file.write(b" and half")
"""


@pytest.fixture
def writer(tmp_path):
    """Start a process that is in the middle of writing step-1."""
    process = subprocess.Popen(
        [sys.executable, "-c", HALF_A_FILE, str(tmp_path / "step-1")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "half\n"
    yield process
    process.kill()
    process.communicate()


def temporary(folder):
    return [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_file_is_replaced_at_the_end_only(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        (waiting,) = temporary(tmp_path)
        assert waiting.name.startswith(".file.")
        assert waiting.name.endswith(SUFFIX)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_interrupted_write_keeps_the_old_file(error, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error), replacing(path) as file:  # noqa: PT012
        file.write(b"new")
        raise error
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("write", ["tensors", "json"])
def test_permissions_are_those_of_any_new_file(write, tmp_path):
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            path = tmp_path / f"{mask}"
            if write == "json":
                files.write_json(path, {"a": 1})
            else:
                files.write(path, "key", {}, TENSORS)
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("write", ["tensors", "json"])
def test_a_link_at_a_temporary_name_is_not_followed(write, tmp_path, monkeypatch):
    victim, path = tmp_path / "victim", tmp_path / "out"
    victim.write_text("precious")
    # The name was predictable once; now even a name that someone guessed is not opened.
    for guess in (f".out.{os.getpid()}", f".out.guessed{SUFFIX}"):
        (tmp_path / guess).symlink_to(victim)
    names = iter(["guessed", "free"])
    monkeypatch.setattr("secrets.token_hex", lambda _: next(names))
    with pytest.raises(OSError, match="exists"):
        files.write_json(path, {}) if write == "json" else files.write(path, "k", {}, TENSORS)
    files.write_json(path, {}) if write == "json" else files.write(path, "k", {}, TENSORS)
    assert path.is_file()
    assert victim.read_text() == "precious"


def test_a_file_being_written_is_kept(writer, tmp_path):
    (half,) = temporary(tmp_path)
    clean_stale(tmp_path, ".step-")
    with replacing(tmp_path / "step-1") as file:  # a second run in the folder
        file.write(b"of the second run")
    assert temporary(tmp_path) == [half]
    writer.communicate("\n")
    assert writer.returncode == 0
    assert (tmp_path / "step-1").read_bytes() == b"half and half"


def test_what_a_killed_process_left_is_removed_by_the_next_write(writer, tmp_path):
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert len(temporary(tmp_path)) == 1
    files.write_json(tmp_path / "step-2", {})
    assert len(temporary(tmp_path)) == 1  # of another file
    files.write_json(tmp_path / "step-1", {})
    assert temporary(tmp_path) == []


def test_what_a_killed_process_left_is_removed_by_prefix(writer, tmp_path):
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    kept = [tmp_path / name for name in ("step-0", ".step-notes", ".other.1.tmp")]
    for path in kept:
        path.touch()
    (link := tmp_path / ".step-link.tmp").symlink_to(kept[0])
    (folder := tmp_path / ".step-folder.tmp").mkdir()
    clean_stale(tmp_path, ".step-")
    assert sorted(tmp_path.iterdir()) == sorted([*kept, link, folder])
    clean_stale(tmp_path / "missing", ".step-")


def test_many_writers_and_cleaners_at_once(tmp_path):
    problems = []

    def work(number):
        try:
            for i in range(25):
                files.write_json(tmp_path / "same", {"by": number, "i": i})
                clean_stale(tmp_path, ".")
        except OSError as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert [path.name for path in Path(tmp_path).iterdir()] == ["same"]
