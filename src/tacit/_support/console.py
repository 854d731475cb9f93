"""Console tables that are never truncated."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def print_table(table: Table) -> None:
    """Print a table at its full width, so that no name is truncated."""
    needed = Console(width=10_000).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)
