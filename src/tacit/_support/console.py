"""Console tables that are never truncated, and progress bars."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


def print_table(table: Table) -> None:
    """Print a table at its full width, so that no name is truncated."""
    Console(width=max(Console().width, _width(table))).print(table)


def table_text(table: Table) -> str:
    """Return a table as plain text, at its full width."""
    stream = io.StringIO()
    Console(file=stream, width=_width(table), color_system=None, force_terminal=False).print(table)
    return stream.getvalue().rstrip("\n")


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], Any]]:
    """Show a progress bar on stderr if it is a terminal; yield a function that advances it.

    Args:
        what: Description of the bar.
        total: Number of items.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda count: None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def _width(table: Table) -> int:
    return Console(width=10_000).measure(table).maximum
