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
