"""Atomic replacement of files, and removal of temporary files left by killed processes.

A file is written under the name `.<name>.<random>.tmp` in the same folder and then renamed. Its
writer holds a lock on it, which the kernel releases when the process ends, for whatever reason. A
temporary file that can be locked is therefore stale. Process ids can't replace the lock: they are
reused, and differ between containers and hosts that share a folder.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows, which never removes an open file
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".tmp"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file, which replaces the one at `path` when the block ends without an exception.

    The new file is created exclusively under a random name, so that no existing file is opened,
    and with the permissions of any new file. Stale temporary files for the same path are removed.

    Raises:
        OSError: If the file can't be written. An existing file is left untouched.
    """
    clean_stale(path.parent, f".{path.name}.")
    temporary, file = _create(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:  # Windows can't rename an open file
                file.close()
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def clean_stale(folder: Path, prefix: str) -> None:
    """Remove temporary files whose writers have ended; those being written are kept.

    Args:
        folder: Folder of the files; it need not exist.
        prefix: Prefix of the temporary files' names: `.step-` for all files `step-*`.
    """
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.name.startswith(prefix) and path.name.endswith(SUFFIX):
            with suppress(OSError):  # already removed, owned by another user, or open on Windows
                _remove_if_stale(path)


def _create(path: Path) -> tuple[Path, BinaryIO]:
    """Create and lock a temporary file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{SUFFIX}")
        file = os.fdopen(os.open(temporary, flags, 0o666), "w+b")
        _lock(file.fileno(), wait=True)
        # Another process may have removed the file before it was locked.
        if fcntl is None or os.fstat(file.fileno()).st_nlink:
            return temporary, file
        file.close()


def _remove_if_stale(path: Path) -> None:
    if fcntl is None:
        path.unlink()
        return
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if _lock(descriptor, wait=False):
            path.unlink()
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Lock a file; return whether it is locked. Some network file systems have no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
