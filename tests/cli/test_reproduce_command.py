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
