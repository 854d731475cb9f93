import json
from dataclasses import replace

import pytest
from tiny_cells import ONE

from tacit.cli import main
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


def test_reading_a_strangers_results_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('code of a results folder ran')")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results"
    run_cells([ONE], folder, jobs=1)
    (path,) = folder.glob("*.json")
    result = json.loads(path.read_text())
    for field in ("method", "data"):
        result["cell"][field] = "evil:anything"
        path.write_text(json.dumps(result))
        (read,) = read_results(folder)
        assert getattr(read["cell"], field) == "evil:anything"
    assert main(["bench", "report", str(folder)]) == 0


@pytest.mark.parametrize("part", ["cell", "test", "corrupted", "foreign", "averaging", "cost"])
def test_a_result_without_a_part_names_it(part, tmp_path):
    run_cells([ONE], tmp_path, jobs=1)
    (path,) = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    path.write_text(json.dumps({**result, part: 5}))
    with pytest.raises(ValueError, match=f"not a result of tacit bench: expected '{part}' to hold"):
        read_results(tmp_path)
    del result[part]
    path.write_text(json.dumps(result))
    with pytest.raises(ValueError, match=f"not a result of tacit bench: '{part}' is missing"):
        read_results(tmp_path)
