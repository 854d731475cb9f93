"""Following a call takes few files, by `sys.setprofile`; see benchmarks/walk.py."""

import json
import sys

import pytest

from benchmarks import import_time, walk


@pytest.mark.parametrize("draws", [None, 1, 8])
def test_a_training_step_by_hand_visits_at_most_8_files(draws):
    files = walk.training_step(draws)
    assert "calling/model.py" in files
    assert len(files) <= 8, files


def test_predict_visits_at_most_13_files():
    files = walk.prediction()
    assert "inference/functions.py" in files
    assert len(files) <= 13, files


def test_the_time_of_imports_is_measured(tmp_path, monkeypatch):
    path = tmp_path / "import_time.json"
    monkeypatch.setattr(sys, "argv", ["import_time", "--smoke", "--out", str(path)])
    import_time.main()
    rows = json.loads(path.read_text())["rows"]
    assert 0 < rows["import tacit"]["seconds"] < rows["import torch"]["seconds"]
