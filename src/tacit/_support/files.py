"""Safetensors files with a JSON header: written atomically, read without executing code."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tacit._support import schema
from tacit._support.temporary_files import clean_stale as clean_stale
from tacit._support.temporary_files import replacing

VERSION = 1
CHECKSUM = "tacit_checksum"  # metadata key of the CRC-32 of the whole file
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""Supported dtypes, with their names in the safetensors format."""

UNREADABLE = (
    SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError,
)  # fmt: skip
"""Exceptions that safetensors and torch raise for damaged files."""

Check: TypeAlias = Callable[[Path, dict[str, Any], dict[str, Tensor]], None]
CHECKS: dict[str, Check] = {}
"""Metadata key -> check of a file's header and tensors, which `read` applies before returning."""


def write(path: Path, key: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write header and tensors to a temporary file, then rename it atomically.

    The file gets a checksum unless the header has an entry `sha256`: then its reader verifies the
    content, which `read` leaves memory-mapped.

    Args:
        path: File to write.
        key: Metadata key of the header; identifies the kind of file.
        header: JSON-serialisable data.
        tensors: Tensors by name; tensors that share memory are written as separate copies.

    Raises:
        OSError: If the file can't be written. An existing file is left untouched.
    """
    text = json.dumps({"version": VERSION, **header})
    try:
        with replacing(path) as file:
            save_file(file, {key: text}, tensors, checksum="sha256" not in header)
    except OSError as error:
        raise OSError(f"{path} could not be written: {error}") from error


def save_file(
    file: BinaryIO, metadata: Mapping[str, str], tensors: Mapping[str, Tensor], *, checksum: bool
) -> None:
    """Write the safetensors format: length of the header, header, tensors one after the other.

    `safetensors.torch.save_file` takes a path, creates its own temporary file beside it, which a
    killed process leaves behind, and copies all tensors. Here one is copied at a time.

    Args:
        file: An empty file.
        metadata: Metadata of the header.
        tensors: Tensors by name.
        checksum: Whether to add the CRC-32 of the file, computed with zeros in its own place.
    """
    entries = layout({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()})
    total = write_start(file, metadata, entries, 0 if checksum else None)
    for name in entries:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        data = memoryview(flat.numpy())  # type: ignore[arg-type]
        file.write(data)
        total = zlib.crc32(data, total)
    if checksum:
        file.seek(0)
        write_start(file, metadata, entries, total)


def layout(specs: Mapping[str, tuple[torch.dtype, Sequence[int]]]) -> dict[str, Any]:
    """Return the entries of a safetensors header, in the order of the tensors in the file.

    Args:
        specs: dtype and shape of each tensor, by name.
    """
    entries: dict[str, Any] = {}
    end = 0
    for name in sorted(specs, key=lambda name: (-specs[name][0].itemsize, name)):  # aligned
        dtype, shape = specs[name]
        start, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {
            "dtype": _dtype_name(name, dtype),
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    return entries


def write_start(
    file: BinaryIO, metadata: Mapping[str, str], entries: Mapping[str, Any], checksum: int | None
) -> int:
    """Write the header and its length; return their CRC-32."""
    own = {} if checksum is None else {CHECKSUM: f"{checksum:08x}"}
    header = json.dumps({"__metadata__": {**own, **metadata}, **entries}).encode()
    header += b" " * (-len(header) % 8)  # tensors are aligned
    start = len(header).to_bytes(8, "little") + header
    file.write(start)
    return zlib.crc32(start)


def _dtype_name(name: str, dtype: torch.dtype) -> str:
    if dtype not in DTYPES:
        known = ", ".join(str(dtype) for dtype in DTYPES)
        raise TypeError(f"{name!r} has dtype {dtype}; a file can hold {known}.")
    return DTYPES[dtype]


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write data as JSON to a temporary file, then rename it atomically."""
    write_bytes(path, (json.dumps(data, indent=1, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it atomically; links are not followed."""
    with replacing(path) as file:
        file.write(content)


def read(path: Path, key: str, writer: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and the memory-mapped tensors of a file.

    Args:
        path: File to read.
        key: Metadata key of the header; identifies the expected kind of file.
        writer: Name of the function that writes this kind of file, for the error message.

    Raises:
        ValueError: If the file is truncated or damaged, of another kind, or of another version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except UNREADABLE as error:
        raise ValueError(f"{path} can't be read: {error}.") from error
    if key not in metadata:
        raise ValueError(f"{path} was not written by {writer}.")
    header = _parsed(path, metadata[key])
    if CHECKSUM in metadata and _checksum(path, metadata[CHECKSUM]) != metadata[CHECKSUM]:
        raise ValueError(f"{path} is damaged: its content doesn't match its checksum.")
    if key in CHECKS:
        CHECKS[key](path, header, tensors)
    return header, tensors


def holds(path: Path, key: str) -> bool:
    """Return whether a file is of the kind that a metadata key identifies."""
    try:
        with safe_open(path, framework="pt") as file:
            return key in (file.metadata() or {})
    except UNREADABLE:
        return False


def _parsed(path: Path, text: str) -> dict[str, Any]:
    """Return a header of this version."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its header is not JSON ({error}).") from error
    check_header(path, header, schema.record({"version": schema.anything}, more=True))
    if type(header["version"]) is not int or header["version"] != VERSION:
        raise ValueError(
            f"{path} has version {header['version']!r:.40}, this library reads {VERSION}."
        )
    found: dict[str, Any] = header
    return found


def check_header(path: object, header: object, rule: schema.Rule) -> None:
    """Raise ValueError, naming file and entry, unless a header fits a rule."""
    try:
        rule("header", header)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _checksum(path: Path, stored: str) -> str:
    """Return the CRC-32 of a file, with zeros in place of the stored one."""
    with path.open("rb") as file:
        start = file.read(8)
        start += file.read(int.from_bytes(start, "little"))
        mark = f'"{CHECKSUM}": "'.encode()
        total = zlib.crc32(start.replace(mark + stored.encode(), mark + b"0" * 8, 1))
        while chunk := file.read(2**20):
            total = zlib.crc32(chunk, total)
    return f"{total:08x}"


Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


def shapes_of(tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors whose names begin with a prefix, which is cut off."""
    return {
        name.removeprefix(prefix): tuple(tensor.shape)
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def check_fits(path: object, own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Raise ValueError, naming the tensor, unless names, shapes and types match the model's.

    Floating-point tensors may differ in precision.
    """
    check_shapes(path, shapes_of(own), shapes_of(found))
    for name, tensor in own.items():
        if found[name].dtype != tensor.dtype and not (
            found[name].is_floating_point() and tensor.is_floating_point()
        ):
            raise ValueError(
                f"{path} doesn't fit the model: {name!r} is {tensor.dtype} in the model and "
                f"{found[name].dtype} in the file."
            )


def check_shapes(path: object, own: Shapes, found: Shapes) -> None:
    """Raise ValueError, naming the tensor, unless names and shapes match the model's."""
    for name in sorted(own.keys() | found.keys()):
        shapes = [part.get(name, "missing") for part in (own, found)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{path} doesn't fit the model: {name!r} is {shapes[0]} in the model and "
                f"{shapes[1]} in the file."
            )


def _simple(fields: Mapping[str, schema.Rule]) -> Check:
    """Return the check of a header that has at least these entries."""
    rule = schema.record(fields, more=True)
    return lambda path, header, _: check_header(path, header, rule)


CHECKS["tacit_checkpoint"] = _simple({"step": schema.integer(0)})
CHECKS["tacit_network"] = _simple({"seconds": schema.number(0)})
