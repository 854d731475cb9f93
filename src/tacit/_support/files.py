"""Safetensors files with a JSON header: written atomically, read without executing code."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

VERSION = 1


def write(path: Path, key: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write header and tensors to a temporary file, then rename it atomically.

    Args:
        path: File to write.
        key: Metadata key of the header; identifies the kind of file.
        header: JSON-serialisable data.
        tensors: Tensors by name; tensors that share memory are written as separate copies.

    Raises:
        OSError: If the file can't be written. An existing file is left untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    copies = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    text = json.dumps({"version": VERSION, **header})
    try:
        mode = _usual_mode(temporary)
        save_file(copies, temporary, metadata={key: text})
        temporary.chmod(mode)  # safetensors creates files with mode 0600
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise OSError(f"{path} could not be written: {error}") from error


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write data as JSON to a temporary file, then rename it atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as file:
            file.write(json.dumps(data, indent=1, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _usual_mode(path: Path) -> int:
    """Create a file and return its permissions, which follow the umask."""
    with path.open("wb") as file:
        return stat.S_IMODE(os.fstat(file.fileno()).st_mode)


def read(path: Path, key: str, writer: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and the tensors of a file.

    Args:
        path: File to read.
        key: Metadata key of the header; identifies the expected kind of file.
        writer: Name of the function that writes this kind of file, for the error message.

    Raises:
        ValueError: If the file is truncated, of another kind, or of another version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(key)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} can't be read: {error}.") from error
    if text is None:
        raise ValueError(f"{path} was not written by {writer}.")
    header = json.loads(text)
    if header["version"] != VERSION:
        raise ValueError(f"{path} has version {header['version']}, this library reads {VERSION}.")
    return header, tensors


def check_fits(path: object, own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Raise ValueError, naming the tensor, unless names and shapes match the model's."""
    for name in sorted(own.keys() | found.keys()):
        shapes = [tuple(part[name].shape) if name in part else "missing" for part in (own, found)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{path} doesn't fit the model: {name!r} is {shapes[0]} in the model and "
                f"{shapes[1]} in the file."
            )
