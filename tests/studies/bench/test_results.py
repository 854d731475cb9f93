from dataclasses import replace

import pytest
from tiny_cells import ONE

from tacit.methods import ImplicitBiasVI
from tacit.studies.bench import METHODS, read_results, run_cells


def test_results_of_other_settings_are_not_mixed(tmp_path):
    run_cells([ONE], tmp_path, jobs=1)
    with pytest.raises(ValueError, match=r"other settings .*compared with \(lr\); choose another"):
        run_cells([replace(ONE, lr=0.7)], tmp_path, jobs=1)
    with pytest.raises(ValueError, match=r"other settings .*\(epochs, train_size\)"):
        run_cells([replace(ONE, method="swag", epochs=9, train_size=None)], tmp_path, jobs=1)
    assert [path.name for path in tmp_path.glob("*.json")] == [f"{ONE.name}.json"]


def test_results_of_a_method_with_other_settings_are_not_mixed(tmp_path, monkeypatch):
    run_cells([ONE], tmp_path, jobs=1)
    monkeypatch.setitem(METHODS, "standard", ImplicitBiasVI())
    with pytest.raises(ValueError, match="has other settings.*with Standard"):
        run_cells([ONE], tmp_path, jobs=1)


def test_files_without_results_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there are no results"):
        read_results(tmp_path)
    (tmp_path / "other.json").write_text('{"cell": {"data": "digits", "colour": "red"}}')
    with pytest.raises(ValueError, match="other.json is not a result of tacit bench: unknown set"):
        read_results(tmp_path)
    (tmp_path / "other.json").write_text("{")
    with pytest.raises(ValueError, match="other.json is not a result"):
        read_results(tmp_path)
