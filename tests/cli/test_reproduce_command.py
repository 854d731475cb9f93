from tacit.cli import main


def test_list(capsys):
    assert main(["reproduce", "list"]) == 0
    printed = capsys.readouterr().out
    assert "linear_theory" in printed
    assert "classification-max-margin" in printed


def test_an_experiment_that_is_not_there(tmp_path, capsys):
    assert main(["reproduce", "nothing", "--out", str(tmp_path)]) == 2
    assert "expected one of implicit_vs_explicit" in capsys.readouterr().err
