"""Members of archives, read without extracting them to disk.

This rules out path traversal by member names. No member is read beyond a size limit.
"""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

LIMIT = 1 << 30  # bytes per member
DEBIAN = b"!<arch>\n"  # magic bytes of a Debian package, an ar archive


def members(
    path: Path, wanted: Callable[[str], bool] = lambda name: True, *, limit: int = LIMIT
) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files in an archive.

    Args:
        path: A zip file or wheel, a tar file (compressed or not), a Debian package or a gzip file,
            recognised by its name. Any other file is its own only member.
        wanted: Whether to read a member, given its name.
        limit: Maximum size of a member in bytes.

    Raises:
        ValueError: If the archive is damaged or a member exceeds the limit.
    """
    try:
        yield from _members(path, wanted, limit)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError,
            RuntimeError, NotImplementedError) as error:  # fmt: skip
        raise ValueError(f"{path} can't be read: {error}") from error


def _members(path: Path, wanted: Callable[[str], bool], limit: int) -> Iterator[tuple[str, bytes]]:
    if path.suffix in (".zip", ".whl"):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir() and wanted(info.filename):
                    with archive.open(info) as file:
                        yield info.filename, _read(file, info.filename, limit)
    elif path.suffix == ".deb":
        with tarfile.open(fileobj=io.BytesIO(_debian_data(path))) as archive:
            yield from _tar(archive, wanted, limit)
    elif path.suffix == ".gz" and ".tar." not in path.name:
        if wanted(path.stem):
            with gzip.open(path) as file:
                yield path.stem, _read(file, path.stem, limit)
    elif path.suffix in (".tgz", ".tar") or ".tar." in path.name:
        with tarfile.open(path) as archive:
            yield from _tar(archive, wanted, limit)
    elif wanted(path.name):
        with path.open("rb") as file:
            yield path.name, _read(file, path.name, limit)


def _tar(
    archive: tarfile.TarFile, wanted: Callable[[str], bool], limit: int
) -> Iterator[tuple[str, bytes]]:
    for info in archive:
        # Links and devices are skipped: only regular files are read.
        if info.isfile() and wanted(info.name):
            file = archive.extractfile(info)
            assert file is not None
            content, name = _read(file, info.name, limit), info.name
            if name.endswith(".gz"):
                content, name = _inflated(content, name, limit), name[:-3]
            yield name, content


def _inflated(content: bytes, name: str, limit: int) -> bytes:
    with gzip.open(io.BytesIO(content)) as file:
        return _read(file, name, limit)


def _read(file: IO[bytes] | gzip.GzipFile, name: str, limit: int) -> bytes:
    content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{name} is larger than {limit} bytes; not read.")
    return content


def _debian_data(path: Path) -> bytes:
    """Return data.tar.*, the member of a Debian package that holds its files."""
    left = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(DEBIAN)) != DEBIAN:
            raise ValueError(f"{path} is not a Debian package: wrong magic bytes.")
        while header := file.read(60):
            name, size = _debian_member(path, header)
            if name.rstrip("/") == "data.tar.zst":
                raise ValueError(f"{path} is compressed with zstd, which is not supported.")
            if name.startswith("data.tar"):
                return file.read(min(size, left))
            file.seek(size + size % 2, io.SEEK_CUR)
    raise ValueError(f"{path} contains no data.tar.")


def _debian_member(path: Path, header: bytes) -> tuple[str, int]:
    """Return name and size from the header of an ar archive's member."""
    name, size = header[:16], header[48:58].strip()
    if len(header) != 60 or not name.isascii() or not size.isdigit():  # rejects signs
        raise ValueError(f"{path} is damaged: a member has no valid name and size.")
    return name.decode("ascii").strip(), int(size)
