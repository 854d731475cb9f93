import pytest

from tacit.cli import main


def test_the_page_is_written_and_opened(tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["demo", "--epochs", "1", "--out", str(tmp_path / "page.html"), "--open"]) == 0
    assert (tmp_path / "page.html").exists()
    assert opened == [(tmp_path / "page.html").as_uri()]
    assert "page.html" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["sklearn", "PIL", "matplotlib"])
def test_missing_packages_are_reported_before_training(missing, monkeypatch, capsys):
    monkeypatch.setattr("tacit.cli.demo.find_spec", lambda name: None if name == missing else 1)
    assert main(["demo"]) == 2
    assert f"demo requires {missing}: pip install" in capsys.readouterr().err
