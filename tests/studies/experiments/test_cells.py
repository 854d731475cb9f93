"""Trainings of an experiment as cells: written when done, and not done again."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tacit.studies.experiments.cells import run_each, trained


def square(number, power):
    return {"value": number**power, "process": os.getpid(), "missing": float("nan")}


def power(seed, number):
    return number**2


def test_only_missing_cells_are_computed(tmp_path):
    choices = [{"number": n} for n in range(3)]
    first = run_each(square, choices[:2], tmp_path, 1, power=2)
    assert [row["value"] for row in first] == [0, 1]
    assert first[0]["missing"] is None
    files = {path: path.read_text() for path in (tmp_path / "cells").iterdir()}
    found = run_each(square, choices, tmp_path, 1, power=2)
    assert [row["value"] for row in found] == [0, 1, 4]
    assert all(path.read_text() == text for path, text in files.items())
    other = run_each(square, choices, tmp_path, 1, power=3)  # other settings: other cells
    assert [row["value"] for row in other] == [0, 1, 8]


def test_a_pattern_chooses_the_cells_that_are_computed(tmp_path):
    choices = [{"seed": s, "number": n} for s in range(2) for n in (3, 4)]
    with pytest.raises(ValueError, match="--cells: expected a pattern of names like '0-3-"):
        run_each(power, choices, tmp_path, 1, cells="0-5-*")
    first = run_each(power, choices, tmp_path, 1, cells="0-4-*")
    assert first == [None, 16, None, None]
    assert run_each(power, choices, tmp_path, 1, cells="?-4-*") == [None, 16, None, 16]
    found = run_each(power, choices, tmp_path, 1, cells="")  # computes nothing
    assert found == [None, 16, None, 16]
    assert trained(choices, found) == "2 of 4 training runs, with numbers of seeds: 4 (2)"
    assert trained([{"seed": 0}, {"seed": 1}], [None, 5]) == "1 of 2 training runs"
    assert trained(choices, run_each(power, choices, tmp_path, 1)) == ""


def test_cells_run_in_parallel_processes(tmp_path, capsys):
    found = run_each(square, [{"number": n} for n in range(4)], tmp_path, 2, power=2)
    assert [row["value"] for row in found] == [0, 1, 4, 9]
    assert os.getpid() not in {row["process"] for row in found}
    assert "[4/4] trainings done, about 0 s left" in capsys.readouterr().out


def test_errors(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="jobs: expected -1 or at least 1, received 0"):
        run_each(square, [], tmp_path, 0)
    choices = [{"number": n} for n in range(2)]
    run_each(square, choices, tmp_path, 1, power=2)
    (path, *_) = (tmp_path / "cells").iterdir()
    path.write_text("{")
    with pytest.raises(ValueError, match="is not a result of a training: .*; delete it"):
        run_each(square, choices, tmp_path, 1, power=2)
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(ValueError, match=r"need joblib: pip install .*, or pass --jobs 1"):
        run_each(square, choices, tmp_path / "new", 2, power=2)


def wait_for_the_end(group):
    """Wait until no process of a group is left, at most a minute."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("processes are left")


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_experiment_continues_with_the_missing_cells(tmp_path, jobs):
    command = [
        sys.executable, "-m", "tacit", "reproduce", "single_sample", "--scale=smoke",
        f"--jobs={jobs}",
    ]  # fmt: skip
    for kind in (signal.SIGKILL, signal.SIGTERM):
        out = tmp_path / kind.name
        process = subprocess.Popen([*command, f"--out={out}"], start_new_session=True)
        cells = out / "single_sample" / "cells"
        while not list(cells.glob("*.json")):
            assert process.poll() is None
            time.sleep(0.02)
        if kind == signal.SIGKILL:
            os.killpg(process.pid, kind)
        else:
            process.send_signal(kind)
        assert process.wait() in (-signal.SIGKILL, 130)
        wait_for_the_end(process.pid)  # the workers end too
        done = {path: path.stat().st_mtime_ns for path in cells.glob("*.json")}
        assert 0 < len(done) < 40
        assert not (out / "single_sample" / "results.json").exists()
        subprocess.run([*command, f"--out={out}"], check=True, capture_output=True)
        assert all(path.stat().st_mtime_ns == when for path, when in done.items())
        assert len(list(cells.glob("*.json"))) == 40
    first, second = (
        json.loads((tmp_path / name / "single_sample" / "results.json").read_text())["results"]
        for name in ("SIGKILL", "SIGTERM")
    )
    assert first == second
