from tacit.cli import main


def test_list(capsys):
    assert main(["reproduce", "list"]) == 0
    printed = capsys.readouterr().out
    assert "linear_theory" in printed
    assert "classification-max-margin" in printed


def test_an_unknown_experiment(tmp_path, capsys):
    assert main(["reproduce", "nothing", "--out", str(tmp_path)]) == 2
    assert "experiment: expected one of implicit_vs_explicit" in capsys.readouterr().err


def test_a_page_without_results(tmp_path, capsys):
    assert main(["reproduce", "page", "--out", str(tmp_path)]) == 2
    assert "there are no results of tacit reproduce" in capsys.readouterr().err
