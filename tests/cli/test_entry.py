import pytest

from tacit.cli import main


@pytest.mark.parametrize(
    ("option", "shown"),
    [("--version", "tacit 0."), *(("--help", name) for name in ("demo", "doctor", "mup", "data"))],
)
def test_version_and_help_are_printed(option, shown, capsys):
    with pytest.raises(SystemExit) as stop:
        main([option])
    assert stop.value.code == 0
    assert shown in capsys.readouterr().out


def test_failures_of_the_operating_system_are_reported_in_one_line(capsys, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device", "page.html")

    monkeypatch.setattr("tacit.studies.demo.main", full)
    assert main(["demo"]) == 3
    assert capsys.readouterr().err == "tacit: [Errno 28] No space left on device: 'page.html'\n"
