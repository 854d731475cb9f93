"""Figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def saved(figure: Any, path: str | Path | None) -> Any:
    """Return a figure, written to a file if there is a path; its ending is the format."""
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    return figure
