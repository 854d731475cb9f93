"""Decoded data on disk: fetched once, checked, and mapped into memory from then on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from filelock import FileLock
from torch import Tensor

from tacit import _files
from tacit.data.download import DownloadError, say
from tacit.data.sources import Source

KEY = "tacit_data"
Tensors: TypeAlias = dict[str, Tensor]
Decode: TypeAlias = Callable[[Sequence[Path]], Tensors]


@dataclass(frozen=True)
class Recipe:
    """How a set of data is had.

    Args:
        name: Of the set.
        about: What it is, in a few words.
        megabytes: To be fetched.
        sources: Where from, in the order in which they are tried, and how the files are decoded.
        sha256: Of the decoded content, the same whatever the source; None where the archive has a
            published digest instead.
        archive: What the files that are fetched are called together, if they hold several sets.
    """

    name: str
    about: str
    megabytes: int
    sources: tuple[tuple[Source, Decode], ...]
    sha256: str | None = None
    archive: str | None = None


class DataMissingError(RuntimeError):
    """Data are not on this machine and can't be fetched."""


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of data: `root`, or $TACIT_DATA, or tacit in the user's cache."""
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("TACIT_DATA"):
        return Path(os.environ["TACIT_DATA"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tacit"


def data_path(recipe: Recipe, root: str | Path | None = None) -> Path:
    """Return the file of a set's decoded content, there or not."""
    return data_root(root) / f"{recipe.name}.safetensors"


def load(recipe: Recipe, root: str | Path | None = None) -> Tensors:
    """Return a set's tensors, mapped into memory; fetched first if they aren't there.

    Raises:
        DataMissingError: If they can't be had.
        ValueError: If the file is damaged.
    """
    path = data_path(recipe, root)
    if not path.exists():
        fetch(recipe, root)
    return _files.read(path, KEY, "tacit.data")[1]


def fetch(recipe: Recipe, root: str | Path | None = None) -> Path:
    """Fetch, decode and check a set, unless it is there; return the file of its content.

    Raises:
        DataMissingError: If no source has it; says what could be done.
    """
    path = data_path(recipe, root)
    downloads = data_root(root) / "downloads" / (recipe.archive or recipe.name)
    downloads.mkdir(parents=True, exist_ok=True)
    failures = []
    with FileLock(path.with_suffix(".lock")):  # another process may be at it
        for source, decode in recipe.sources:
            if path.exists():
                break
            try:
                say(f"{recipe.name}, {recipe.megabytes} MB: {source.command}")
                tensors, digest = _decoded(recipe, source, decode, source.fetch(downloads))
                _files.write(path, KEY, {"name": recipe.name, "sha256": digest}, tensors)
            except DownloadError as error:
                failures.append(str(error))
    if not path.exists():
        raise DataMissingError(_missing(recipe, downloads, failures))
    return path


def _decoded(
    recipe: Recipe, source: Source, decode: Decode, files: Sequence[Path]
) -> tuple[Tensors, str]:
    """Return the content of files, checked, and its digest; without it they are deleted.

    Except where their own digest was right: then it isn't they that are wrong.

    Raises:
        DownloadError: If they haven't got it, whatever is wrong with them.
    """
    try:
        tensors = decode(files)
        digest = content_digest(tensors)
        _check(recipe, digest)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # a damaged file can fail in any way: another source may be whole
        for file in () if source.checked else files:
            file.unlink(missing_ok=True)
        names = ", ".join(file.name for file in files)
        raise DownloadError(f"{names} can't be used: {type(error).__name__}: {error}") from error
    return tensors, digest


def verify(recipe: Recipe, root: str | Path | None = None) -> None:
    """Check that a set on disk has the content that it should have.

    Raises:
        ValueError: If it has not, or is not there.
    """
    path = data_path(recipe, root)
    if not path.exists():
        raise ValueError(f"{recipe.name} is not there; `tacit data fetch {recipe.name}` gets it.")
    header, tensors = _files.read(path, KEY, "tacit.data")
    found = content_digest(tensors)
    _check(recipe, found)
    if found != header["sha256"]:
        raise ValueError(f"{path} was changed since it was written; delete it and fetch it again.")


def content_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors: their names, types, shapes and values."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.numpy().data)
    return found.hexdigest()


def _check(recipe: Recipe, found: str) -> None:
    if recipe.sha256 is not None and found != recipe.sha256:
        raise ValueError(
            f"the content is not the expected one: SHA-256 {found} instead of {recipe.sha256}."
        )


def _missing(recipe: Recipe, downloads: Path, failures: Sequence[str]) -> str:
    commands = "\n".join(f"  {source.command}" for source, _ in recipe.sources)
    reasons = "\n".join(f"  {failure}" for failure in failures)
    return (
        f"{recipe.name} is not on this machine and could not be fetched:\n{reasons}\n"
        f"Where there is a network, `tacit data fetch {recipe.name}` gets it. Or run one of these, "
        f"put what it gives into {downloads}, and try again:\n{commands}"
    )
