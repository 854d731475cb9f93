import json

import pytest

from tacit.cli import main


def test_list_shows_experiments_and_claims(capsys):
    assert main(["reproduce", "list"]) == 0
    printed = capsys.readouterr().out
    assert "linear_theory" in printed
    assert "classification-max-margin" in printed


def test_unknown_experiments_are_rejected(tmp_path, capsys):
    assert main(["reproduce", "nothing", "--out", str(tmp_path)]) == 2
    assert "experiment: expected one of implicit_vs_explicit" in capsys.readouterr().err


def test_a_page_requires_results(tmp_path, capsys):
    assert main(["reproduce", "page", "--out", str(tmp_path)]) == 2
    assert "there are no results of tacit reproduce" in capsys.readouterr().err


def test_a_file_is_refused_as_the_results_folder_before_computing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tacit.cli.reproduce.reproduce", None)
    (tmp_path / "file").touch()
    assert main(["reproduce", "rank_scaling", "--out", str(tmp_path / "file")]) == 2
    assert f"--out: expected a folder, {tmp_path / 'file'} is a file" in capsys.readouterr().err


def test_data_sets_are_for_comparisons_of_methods(tmp_path, capsys):
    assert main(["reproduce", "cost", "--data", "mnist", "--out", str(tmp_path)]) == 2
    assert "--data: cost has one data set; leave the option out" in capsys.readouterr().err


def test_cells_are_chosen_where_some_can_be_judged(tmp_path, capsys):
    assert main(["reproduce", "cost", "--cells", "*-0.003-*", "--out", str(tmp_path)]) == 2
    message = "--cells: cost is judged from all its training runs; leave the option out"
    assert message in capsys.readouterr().err
    assert main(["reproduce", "cost", "--bench", "results/bench", "--out", str(tmp_path)]) == 2
    assert "--bench: cost has training runs of its own" in capsys.readouterr().err


def test_an_experiment_is_judged_from_the_cells_that_are_finished(tmp_path, capsys):
    command = ["reproduce", "single_sample", "--scale=smoke", f"--out={tmp_path}"]
    assert main([*command, "--cells", "*-SGD-M[18]-0.003-*"]) == 0
    assert len(list((tmp_path / "single_sample" / "cells").iterdir())) == 4
    text = (tmp_path / "index.md").read_text()
    finished = "4 of 40 training runs, with numbers of seeds: SGD, M=1, 0.003 (2)"
    assert f"Finished so far: {finished}; SGD, M=8, 0.003 (2)." in text
    assert "no seed has all training runs that are compared" in text


SAVED = {"arguments": {}, "scale": "smoke", "versions": {}, "commit": None, "results": {"rows": []}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a result of tacit reproduce: "),
        ("[]", "is not a result of tacit reproduce: "),
        ("{}", "is not a result of tacit reproduce: 'arguments' is missing."),
        (json.dumps({**SAVED, "scale": 5}), "is not a result of tacit reproduce: 'scale' holds 5."),
        (json.dumps(SAVED), "is not a result of tacit reproduce rank_scaling: "),
    ],
)
def test_files_without_results_are_reported_in_one_line(text, message, tmp_path, capsys):
    path = tmp_path / "rank_scaling" / "results.json"
    path.parent.mkdir()
    path.write_text(text)
    assert main(["reproduce", "page", "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert f"{path} {message}" in printed
    assert len(printed.splitlines()) == 1
