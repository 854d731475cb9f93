"""Folders for results, checked before long computations."""

from __future__ import annotations

import os
from pathlib import Path


def check_folder(option: str, folder: Path) -> None:
    """Raise ValueError unless files can be written to a folder, which may not exist yet.

    Args:
        option: Name of the argument, for the error message.
        folder: The folder.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{option}: expected a folder, {existing} is a file; choose another.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(
            f"{option}: expected a folder that can be written to, {existing} can't be; choose "
            "another."
        )
