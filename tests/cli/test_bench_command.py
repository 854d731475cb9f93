import signal

import pytest

from tacit.cli import main

TINY = ["--epochs=4", "--batch-size=32", "--train-size=320", "--test-size=20", "--samples=2"]


def bench(*arguments):
    return main(["bench", *map(str, arguments)])


def test_finished_runs_are_reused_and_reported(tmp_path, capsys):
    arguments = ["run", "--data", "digits", "--methods", "standard,temperature_scaling"]
    arguments += ["--seeds", 1, "--parametrization", "sp", "--out", tmp_path, "--jobs", 1, *TINY]
    assert bench(*arguments) == 0
    assert "[2/2] digits-sp-temperature_scaling-0 done" in capsys.readouterr().out
    assert bench(*arguments) == 0
    assert "2 training runs, 2 already finished" in capsys.readouterr().out
    assert bench("report", tmp_path) == 0
    assert capsys.readouterr().out.split() == [
        str(tmp_path / "report.html"), str(tmp_path / "report.md"),
    ]  # fmt: skip


def test_a_failed_run_sets_the_exit_code(tmp_path, capsys):
    arguments = ["--data", "digits", "--methods", "standard", "--seeds", 1, "--lr", 1e9, *TINY]
    code = bench("run", *arguments, "--parametrization", "sp", "--jobs", 1, "--out", tmp_path)
    assert code == 3
    assert "failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nist"], "data: expected one of digits"),
        (["--data", "digits", "--methods", "magic"], "method: expected one of"),
        (["--data", "digits", "--seeds", "0"], "seeds: expected"),
    ],
)
def test_invalid_arguments_are_reported(tmp_path, capsys, arguments, message):
    assert bench("run", *arguments, "--out", tmp_path) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_report_requires_results(tmp_path, capsys):
    assert bench("report", tmp_path) == 2
    assert "there are no results" in capsys.readouterr().err


def test_a_file_is_refused_as_the_results_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("kept")
    for out in (tmp_path / "file", tmp_path / "file" / "folder"):
        assert bench("run", "--data", "digits", "--methods", "standard", "--out", out) == 2
        message = capsys.readouterr().err
        assert f"--out: expected a folder, {tmp_path / 'file'} is a file; choose another" in message
        assert len(message.splitlines()) == 1
    assert (tmp_path / "file").read_text() == "kept"


def test_a_path_is_refused_as_a_module(tmp_path, capsys):
    assert bench("run", "--data", "../mine:problem", "--out", tmp_path) == 2
    assert "received the path '../mine:problem'" in capsys.readouterr().err


def test_the_handler_of_sigterm_is_restored_after_a_failure(tmp_path, capsys):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    arguments = ["--data", "digits", "--methods", "standard", "--out", tmp_path, "--jobs", 0]
    assert bench("run", *arguments) == 2
    assert "jobs: expected -1 or at least 1" in capsys.readouterr().err
    assert signal.signal(signal.SIGTERM, before) == signal.SIG_DFL
