"""Decoded datasets on disk: fetched once, verified, and memory-mapped from then on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from filelock import FileLock
from torch import Tensor

from tacit._support import files
from tacit.data.download import DownloadError, say
from tacit.data.sources import Source

KEY = "tacit_data"
Tensors: TypeAlias = dict[str, Tensor]
Decode: TypeAlias = Callable[[Sequence[Path]], Tensors]


@dataclass(frozen=True)
class Recipe:
    """How a dataset is fetched, decoded and verified.

    Args:
        name: Name of the dataset.
        about: Description in a few words.
        megabytes: Size of the download.
        sources: Sources in the order in which they are tried, each with the decoder of its files.
        sha256: Digest of the decoded content, the same for all sources; None if the archive has a
            published digest instead.
        archive: Name shared by the datasets that are decoded from the same downloaded files.
    """

    name: str
    about: str
    megabytes: int
    sources: tuple[tuple[Source, Decode], ...]
    sha256: str | None = None
    archive: str | None = None


class DataMissingError(RuntimeError):
    """A dataset is not on this machine and can't be fetched.

    Examples:
        >>> import tacit
        >>> try:  # doctest: +SKIP
        ...     train, validation, test = tacit.data.cifar10()
        ... except tacit.data.DataMissingError as error:
        ...     print(error)  # the commands that fetch it
    """


def data_root(root: str | Path | None = None) -> Path:
    """Return the data folder: `root`, else $TACIT_DATA, else `tacit` in the user's cache."""
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("TACIT_DATA"):
        return Path(os.environ["TACIT_DATA"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tacit"


def data_path(recipe: Recipe, root: str | Path | None = None) -> Path:
    """Return the path of a dataset's decoded content, whether it exists or not."""
    return data_root(root) / f"{recipe.name}.safetensors"


def load(recipe: Recipe, root: str | Path | None = None) -> Tensors:
    """Return the memory-mapped tensors of a dataset, which is fetched first if necessary.

    Content of another digest, cached by another version of tacit, is fetched again.

    Raises:
        DataMissingError: If the dataset can't be fetched.
        ValueError: If the file is damaged.
    """
    path = data_path(recipe, root)
    if not path.exists():
        fetch(recipe, root)
    header, tensors = files.read(path, KEY, "tacit.data")
    if recipe.sha256 in (None, header["sha256"]):
        return tensors
    path.unlink(missing_ok=True)
    return files.read(fetch(recipe, root), KEY, "tacit.data")[1]


def fetch(recipe: Recipe, root: str | Path | None = None) -> Path:
    """Fetch, decode and verify a dataset unless it is cached; return the path of its content.

    Raises:
        DataMissingError: If all sources fail; the message says how to fetch it by hand.
    """
    path = data_path(recipe, root)
    downloads = data_root(root) / "downloads" / (recipe.archive or recipe.name)
    downloads.mkdir(parents=True, exist_ok=True)
    failures = []
    with FileLock(path.with_suffix(".lock")):  # another process may be fetching it
        for source, decode in recipe.sources:
            if path.exists():
                break
            try:
                say(f"{recipe.name}, {recipe.megabytes} MB: {source.command}")
                tensors, digest = _decoded(recipe, source, decode, source.fetch(downloads))
                files.write(path, KEY, {"name": recipe.name, "sha256": digest}, tensors)
            except DownloadError as error:
                failures.append(str(error))
    if not path.exists():
        raise DataMissingError(_missing(recipe, downloads, failures))
    return path


def _decoded(
    recipe: Recipe, source: Source, decode: Decode, files: Sequence[Path]
) -> tuple[Tensors, str]:
    """Decode and verify downloaded files; return their tensors and the digest.

    Files that can't be decoded or verified are deleted, unless their own digests were checked: then
    the fault is not in the files.

    Raises:
        DownloadError: If decoding or verification fails, for whatever reason.
    """
    try:
        tensors = decode(files)
        digest = content_digest(tensors)
        _check(recipe, digest)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # a damaged file can fail in any way; another source may be intact
        for file in () if source.checked else files:
            file.unlink(missing_ok=True)
        names = ", ".join(file.name for file in files)
        raise DownloadError(f"{names} can't be used: {type(error).__name__}: {error}") from error
    return tensors, digest


def verify(recipe: Recipe, root: str | Path | None = None) -> None:
    """Verify the content of a dataset on disk.

    Raises:
        ValueError: If it is missing, or its content is not the expected one.
    """
    path = data_path(recipe, root)
    if not path.exists():
        raise ValueError(
            f"{recipe.name} is not on this machine; run `tacit data fetch {recipe.name}`."
        )
    header, tensors = files.read(path, KEY, "tacit.data")
    found = content_digest(tensors)
    _check(recipe, found)
    if found != header["sha256"]:
        raise ValueError(f"{path} was changed since it was written; delete it and fetch it again.")


def content_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors: their names, dtypes, shapes and values."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.numpy().data)
    return found.hexdigest()


def _check(recipe: Recipe, found: str) -> None:
    if recipe.sha256 is not None and found != recipe.sha256:
        raise ValueError(f"wrong content: expected SHA-256 {recipe.sha256}, received {found}.")


def _missing(recipe: Recipe, downloads: Path, failures: Sequence[str]) -> str:
    commands = "\n".join(f"  {source.command}" for source, _ in recipe.sources)
    reasons = "\n".join(f"  {failure}" for failure in failures)
    return (
        f"{recipe.name} is not on this machine and could not be fetched:\n{reasons}\n"
        f"With network access, run `tacit data fetch {recipe.name}`. Or run one of these commands, "
        f"put the downloaded files into {downloads}, and try again:\n{commands}"
    )
