"""Writing figures to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def saved(figure: Any, path: str | Path | None) -> Any:
    """Return the figure, after writing it to `path` if given; the suffix sets the format."""
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    return figure
