"""Safetensors files whose tensors are filled in place, for content larger than memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from tacit._support import files
from tacit._support.temporary_files import replacing


@contextmanager
def create(
    path: Path,
    key: str,
    header: Mapping[str, Any],
    specs: Mapping[str, tuple[torch.dtype, Sequence[int]]],
) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of a new file, all zero, mapped from disk and writable.

    The file appears at `path` when the block ends without an exception, complete, and is read by
    `files.read`. It has no checksum. The tensors must not be used after the block.

    Args:
        path: File to write.
        key: Metadata key of the header; identifies the kind of file.
        header: JSON-serialisable data.
        specs: dtype and shape of each tensor, by name; none may be empty.

    Raises:
        OSError: If there is not enough space. An existing file is left untouched.
    """
    entries = files.layout(specs)
    metadata = {key: json.dumps({"version": files.VERSION, **header})}
    with replacing(path) as file:
        files.write_start(file, metadata, entries, None)
        start = file.tell()
        end = start + max(entry["data_offsets"][1] for entry in entries.values())
        _reserve(path, file, end)
        mapped = np.memmap(file, np.uint8, "r+", shape=(end,))
        yield {
            name: torch.from_numpy(mapped[slice(*(start + at for at in entry["data_offsets"]))])
            .view(specs[name][0])
            .view(tuple(specs[name][1]))
            for name, entry in entries.items()
        }
        mapped.flush()


def _reserve(path: Path, file: BinaryIO, size: int) -> None:
    """Reserve space for a file: writing to a mapped hole on a full disk would kill the process."""
    file.flush()
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:  # macOS and Windows
            file.truncate(size)
    except OSError as error:
        raise OSError(
            f"{path} could not be written: it needs {size / 1e6:.0f} MB ({error})."
        ) from error
