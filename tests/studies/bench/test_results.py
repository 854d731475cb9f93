import json
import sys
from dataclasses import replace

import pytest
from tiny_cells import ONE

from tacit.cli import main
from tacit.methods import ImplicitBiasVI
from tacit.studies.bench import METHODS, read_results, run_cells


def test_results_of_other_settings_are_not_mixed(finished):
    with pytest.raises(ValueError, match=r"other settings .*compared with \(lr\); choose another"):
        run_cells([replace(ONE, lr=0.7)], finished, jobs=1)
    with pytest.raises(ValueError, match=r"other settings .*\(epochs, train_size\)"):
        run_cells([replace(ONE, method="swag", epochs=9, train_size=None)], finished, jobs=1)
    assert [path.name for path in finished.glob("*.json")] == [f"{ONE.name}.json"]


def test_results_of_a_method_with_other_settings_are_not_mixed(finished, monkeypatch):
    monkeypatch.setitem(METHODS, "standard", ImplicitBiasVI())
    with pytest.raises(ValueError, match="has other settings.*with Standard"):
        run_cells([ONE], finished, jobs=1)


def test_files_without_results_are_refused(tmp_path):
    with pytest.raises(ValueError, match="there are no results"):
        read_results(tmp_path)
    (tmp_path / "other.json").write_text('{"cell": {"data": "digits", "colour": "red"}}')
    with pytest.raises(ValueError, match="other.json is not a result of tacit bench: unknown set"):
        read_results(tmp_path)
    (tmp_path / "other.json").write_text("{")
    with pytest.raises(ValueError, match="other.json is not a result"):
        read_results(tmp_path)


def test_reading_a_strangers_results_imports_nothing(finished, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('code of a results folder ran')")
    monkeypatch.chdir(tmp_path)
    (path,) = finished.glob("*.json")
    result = json.loads(path.read_text())
    for field in ("method", "data"):
        result["cell"][field] = "evil:anything"
        path.write_text(json.dumps(result))
        (read,) = read_results(finished)
        assert getattr(read["cell"], field) == "evil:anything"
    assert main(["bench", "report", str(finished)]) == 0
    # Neither does resuming a comparison there.
    with pytest.raises(ValueError, match="has other settings"):
        run_cells([ONE], finished, jobs=1)
    assert "evil" not in sys.modules


@pytest.mark.parametrize("part", ["cell", "test", "corrupted", "foreign", "averaging", "cost"])
def test_a_result_without_a_part_names_it(part, finished):
    (path,) = finished.glob("*.json")
    result = json.loads(path.read_text())
    path.write_text(json.dumps({**result, part: 5}))
    with pytest.raises(ValueError, match=f"not a result of tacit bench: expected '{part}' to hold"):
        read_results(finished)
    del result[part]
    path.write_text(json.dumps(result))
    with pytest.raises(ValueError, match=f"not a result of tacit bench: '{part}' is missing"):
        read_results(finished)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": {}}, "'accuracy' is missing"),
        ({"test": {"accuracy": "good", "nll": 1, "ece": 1, "aurc": 1}}, "unsupported operand"),
        ({"cost": {"seconds": "long", "parameters": 1}}, "a number for seconds, received 'long'"),
        ({"corrupted": {"fog": 3}}, "not subscriptable"),
        ({"method": ["a"]}, "expected 'method' to hold a string"),
    ],
)
def test_a_result_without_its_numbers_is_reported_in_one_line(change, message, finished, capsys):
    (path,) = finished.glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert main(["bench", "report", str(finished)]) == 2
    printed = capsys.readouterr().err
    assert f"{path} is not a result of tacit bench: " in printed
    assert message in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("seconds", ["0", "1" + "0" * 400, "[" * 100_000])
def test_impossible_numbers_are_reported_in_one_line(seconds, finished, capsys):
    path = finished / f"{ONE.name}.json"
    result = json.loads(path.read_text())
    result["cost"]["seconds"] = "HERE"
    path.write_text(json.dumps(result).replace('"HERE"', seconds))
    assert main(["bench", "report", str(finished)]) == 2
    assert "is not a result of tacit bench" in capsys.readouterr().err
