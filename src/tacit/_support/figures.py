"""Writing figures to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacit._support.temporary_files import replacing


def saved(figure: Any, path: str | Path | None) -> Any:
    """Return the figure, after writing it to `path` if given; the suffix sets the format.

    An existing file is replaced atomically; a link at its path is not followed.
    """
    if path is not None:
        kind = Path(path).suffix[1:] or figure.canvas.get_default_filetype()
        path = Path(path) if Path(path).suffix else Path(f"{path}.{kind}")  # as matplotlib does
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            figure.savefig(file, format=kind)
    return figure
