"""Console tables that are never truncated."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table


def print_table(table: Table) -> None:
    """Print a table at its full width, so that no name is truncated."""
    Console(width=max(Console().width, _width(table))).print(table)


def table_text(table: Table) -> str:
    """Return a table as plain text, at its full width."""
    stream = io.StringIO()
    Console(file=stream, width=_width(table), color_system=None, force_terminal=False).print(table)
    return stream.getvalue().rstrip("\n")


def _width(table: Table) -> int:
    return Console(width=10_000).measure(table).maximum
