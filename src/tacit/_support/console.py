"""Tables on the terminal, or in a file: never with cut names."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def print_table(table: Table) -> None:
    """Print a table as wide as it needs to be: a name that is cut tells nothing."""
    needed = Console(width=10_000).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)
