"""Downloads that are resumed if interrupted, verified, and visible only when complete."""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Any

from filelock import FileLock

BLOCK = 1 << 20
TIMEOUT = 30.0  # seconds without a response
TRIES = 5  # attempts, each of which resumes the one before


class DownloadError(OSError):
    """A file could not be downloaded, or has the wrong content."""


def download(url: str, path: Path, digest: str | None = None) -> Path:
    """Download a file unless it exists; return its path.

    A partial download is kept next to it (.part) and resumed. The file gets its name once it is
    complete and its digest correct.

    Args:
        url: URL of the file.
        path: Path to save it to.
        digest: Expected digest of the content, "sha256:..." or "md5:...".

    Raises:
        DownloadError: If the download fails or the digest differs; a download with a wrong digest
            is deleted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock")):  # another process may be downloading it
        return _download(url, path, digest)


def _download(url: str, path: Path, digest: str | None) -> Path:
    if path.exists():
        if digest is not None and _digest_of(path, path.stat().st_mtime, digest) != digest:
            raise DownloadError(f"{path} is not the expected file ({digest}); delete it.")
        return path
    part = path.with_name(f"{path.name}.part")
    for left in reversed(range(TRIES)):
        before = part.stat().st_size if part.exists() else 0
        try:
            _fetch(url, part)
            break
        except (OSError, HTTPException) as error:
            # Retry only after progress: an unknown host stays unknown.
            if not left or not part.exists() or part.stat().st_size <= before:
                raise DownloadError(f"{url}: {error}") from error
    if digest is not None and file_digest(part, digest.partition(":")[0]) != digest:
        part.unlink()
        raise DownloadError(f"{url}: wrong content, expected {digest}; deleted.")
    part.replace(path)
    return path


def file_digest(path: Path, kind: str = "sha256") -> str:
    """Return a file's digest prefixed by its algorithm, "sha256:..."."""
    found = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return f"{kind}:{found.hexdigest()}"


@cache
def _digest_of(path: Path, changed: float, digest: str) -> str:
    """Return a file's digest; cached, as 15 datasets may share an archive."""
    return file_digest(path, digest.partition(":")[0])


def _fetch(url: str, part: Path) -> None:
    """Download a URL into a file, resuming after the bytes that it already has."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "tacit"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:  # empty range: the file is complete
            return
        raise
    with answer:
        if done and answer.status != 206:  # no range support: the server sends the whole file
            done = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        with part.open("ab" if done else "wb") as file, progress(part.stem, total, done) as show:
            while block := answer.read(BLOCK):
                file.write(block)
                show(len(block))
            file.flush()
            os.fsync(file.fileno())
    if total is not None and part.stat().st_size != total:
        raise DownloadError(f"connection lost after {part.stat().st_size} of {total} bytes")


def say(what: str) -> None:
    """Print a line to stderr if it is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{what}\n")


@contextmanager
def progress(what: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], Any]]:
    """Show a progress bar on stderr if it is a terminal; yield a function that advances it.

    Args:
        what: Description of the bar.
        total: Total number of bytes, if known.
        done: Bytes already downloaded.
    """
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda count: bar.advance(task, count)
