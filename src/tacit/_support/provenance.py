"""Provenance of a result: versions and the commit of the code."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch


def provenance() -> dict[str, Any]:
    """Return the versions of Python and torch, and the commit of the running code.

    The commit ends in + if the working tree differs from it. It is None if this file is not tracked
    by git, or git is not installed.
    """
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"versions": versions, "commit": _commit()}


def _commit() -> str | None:
    here = Path(__file__)
    try:
        if not _git("ls-files", here.name, cwd=here.parent):
            return None
        changed = _git("status", "--porcelain", "--", ".", cwd=here.parent)
        return _git("rev-parse", "--short", "HEAD", cwd=here.parent) + ("+" if changed else "")
    except OSError:
        return None


def _git(*arguments: str, cwd: Path) -> str:
    found = subprocess.run(
        ["git", "--no-optional-locks", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()
