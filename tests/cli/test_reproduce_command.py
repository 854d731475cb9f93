from tacit.cli import main


def test_list(capsys):
    assert main(["reproduce", "list"]) == 0
    printed = capsys.readouterr().out
    assert "linear_theory" in printed
    assert "classification-max-margin" in printed


def test_all_in_seconds(tmp_path, capsys):
    assert main(["reproduce", "all", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "error-equals-variance-sgd: holds." in printed
    assert "lr-transfer: not decided at this scale." in printed
    page = (tmp_path / "index.html").read_text()
    assert page.count("<img") == 7
    assert "tacit reproduce coordinate_check --scale smoke" in page


def test_an_experiment_that_is_not_there(tmp_path, capsys):
    assert main(["reproduce", "nothing", "--out", str(tmp_path)]) == 2
    assert "expected one of linear_theory" in capsys.readouterr().err
