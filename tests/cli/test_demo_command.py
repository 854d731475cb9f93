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


def test_a_folder_is_refused_as_the_page_before_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tacit.studies.demo.train", None)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert f"out: expected a file for the page, received the folder {tmp_path}; try" in message
    (tmp_path / "file").touch()
    assert main(["demo", "--out", str(tmp_path / "file" / "page.html")]) == 2
    message = capsys.readouterr().err
    assert (
        message
        == f"tacit: out: expected a folder, {tmp_path / 'file'} is a file; choose another.\n"
    )


def test_divergence_is_reported_in_one_line(tmp_path, capsys):
    assert main(["demo", "--lr", "100", "--epochs", "1", "--out", str(tmp_path / "page.html")]) == 3
    message = capsys.readouterr().err
    assert "Try a smaller learning rate than 100" in message
    assert len(message.splitlines()) == 1
    assert not list(tmp_path.iterdir())
