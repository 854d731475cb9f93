"""Progress bars: in a terminal only."""

import io

from rich.console import Console

from tacit._support import console


def test_nothing_is_shown_outside_a_terminal(capsys):
    with console.progress_bar("decoding", 10) as advance:
        advance(10)
    assert capsys.readouterr().err == ""


def test_progress_in_a_terminal(monkeypatch):
    stream = io.StringIO()
    terminal = Console(file=stream, force_terminal=True, width=100)
    monkeypatch.setattr(console, "Console", lambda **settings: terminal)
    with console.progress_bar("decoding", 10) as advance:
        advance(4)
    assert "decoding" in stream.getvalue()
    assert "4/10" in stream.getvalue()
