import pytest

from tacit.cli import main
from tacit.studies import demo


def test_demo_learns_and_prints_its_table(capsys):
    rows = demo.main(None, epochs=10)
    assert list(rows) == [demo.PLAIN, demo.OURS]
    for row in rows.values():
        assert row["accuracy"] > 0.9
        assert row["AUROC photos"] > 0.8
        assert 0 < row["Brier"] < 0.2
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("AUROC noisy", "parameters", demo.PLAIN))


def test_as_a_command(tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["demo", "--epochs", "1", "--out", str(tmp_path / "page.html"), "--open"]) == 0
    assert (tmp_path / "page.html").exists()
    assert opened == [(tmp_path / "page.html").as_uri()]
    assert "page.html" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["sklearn", "PIL", "matplotlib"])
def test_what_is_missing_is_named_before_any_work(missing, monkeypatch, capsys):
    monkeypatch.setattr("tacit.cli.demo.find_spec", lambda name: None if name == missing else 1)
    assert main(["demo"]) == 2
    assert f"{missing} is needed: pip install" in capsys.readouterr().err
