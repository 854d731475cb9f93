"""Decoded image files in a memory-mapped cache, with the statistics of the training images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from tacit._support import files as tensor_files
from tacit._support.mapped_files import create
from tacit.data.decoding import decode_files, listed
from tacit.data.image_files import ImageFile

KEY = "tacit_image_folder"
FORMAT = 1  # changes whenever the same files would be decoded differently
BLOCK = 1 << 22  # bytes of pixels whose statistics are computed at a time

Specs: TypeAlias = dict[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass(frozen=True)
class Decoding:
    """Files to decode, and how.

    Args:
        files: Files in the order of the parts, those for training first.
        training: Number of training files.
        shape: Channels, height and width of the decoded images.
        workers: Number of threads.
        skip_broken: Whether files that can't be decoded are left out.
    """

    files: Sequence[ImageFile]
    training: int
    shape: tuple[int, int, int]
    workers: int
    skip_broken: bool

    @property
    def specs(self) -> Specs:
        """Type and shape of the tensors in the cache.

        The first rows of `pixels` are the images, without gaps; `broken` marks the files that
        have none. `statistics` has mean and standard deviation of each channel as rows.
        """
        count = len(self.files)
        return {
            "pixels": (torch.uint8, (count, *self.shape)),
            "broken": (torch.bool, (count,)),
            "statistics": (torch.float64, (2, self.shape[0])),
        }

    @property
    def digest(self) -> str:
        """Hash of the files (path, size, time of modification), their order, and the shape."""
        listing = [
            FORMAT, self.shape, self.training,
            [(str(file.path.absolute()), *_stamp(file.path)) for file in self.files],
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Decoded:
    """Decoded images.

    Args:
        pixels: uint8, (B, C, H, W), those of the files that could be decoded, in their order.
        mean: Mean of each channel over the training images, for pixels in [0, 1].
        std: Standard deviation of each channel; 1 for a constant channel.
        failures: Index of a file -> reason why it can't be decoded.
    """

    pixels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    failures: dict[int, str]


def decoded(task: Decoding, folder: Path | None) -> Decoded:
    """Decode files, or return what is in the cache; a second process waits for the first.

    Args:
        task: What to decode.
        folder: Folder of the cache, or None to decode into memory.

    Raises:
        ValueError: If files can't be decoded, unless they are to be skipped.
    """
    if folder is None:
        tensors = {
            name: torch.zeros(shape, dtype=kind) for name, (kind, shape) in task.specs.items()
        }
        return _result(tensors, _fill(task, tensors))
    path = folder / f"{task.digest}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        found = _cached(task, path)
        if found is None:
            with create(path, KEY, {}, task.specs) as tensors:
                failures = _fill(task, tensors)
            found = _result(_read(path), failures)
    return found


def _cached(task: Decoding, path: Path) -> Decoded | None:
    """Return the content of the cache; None if there is none, or it can't be used.

    Broken files are tried again: they may have been unreadable only for a time.
    """
    if not path.exists():
        return None
    try:
        tensors = _read(path)
    except ValueError:  # damaged, for instance by a failing disk: decoded again
        return None
    if {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()} != task.specs:
        return None
    rows = tensors["broken"].nonzero().flatten().tolist()
    if not rows:
        return _result(tensors, {})
    trial = np.empty((len(rows), *task.shape), np.uint8)
    failed = decode_files([task.files[row].path for row in rows], trial, task.workers)
    if len(failed) < len(rows):
        return None
    failures = {rows[i]: why for i, why in failed.items()}
    _check(task, failures)
    return _result(tensors, failures)


def _read(path: Path) -> dict[str, Tensor]:
    return tensor_files.read(path, KEY, "tacit.data.image_folder")[1]


def _fill(task: Decoding, tensors: dict[str, Tensor]) -> dict[int, str]:
    """Decode all files into tensors; return the failures."""
    pixels = tensors["pixels"].numpy()
    failures = decode_files([file.path for file in task.files], pixels, task.workers)
    _check(task, failures)
    intact = [row for row in range(len(task.files)) if row not in failures]
    for target, row in enumerate(intact):
        if target != row:
            pixels[target] = pixels[row]
    tensors["broken"][list(failures)] = True
    training = sum(row < task.training for row in intact)
    tensors["statistics"].copy_(statistics(tensors["pixels"][:training]))
    return failures


def _check(task: Decoding, failures: dict[int, str]) -> None:
    if failures and not task.skip_broken:
        raise ValueError(
            f"image_folder: {len(failures)} of {len(task.files)} files can't be read: "
            f"{describe(task.files, failures)}. Repair or remove them, or pass skip_broken=True."
        )


def describe(files: Sequence[ImageFile], failures: dict[int, str]) -> str:
    """Return the names of the first files that failed, with reasons, and how many more."""
    return listed(f"{files[row].name} ({why})" for row, why in failures.items())


def _result(tensors: dict[str, Tensor], failures: dict[int, str]) -> Decoded:
    mean, std = tensors["statistics"].tolist()
    count = len(tensors["pixels"]) - len(failures)
    return Decoded(tensors["pixels"][:count], tuple(mean), tuple(std), failures)


def statistics(pixels: Tensor) -> Tensor:
    """Return mean and standard deviation of each channel, for pixels in [0, 1], (2, C), float64.

    From histograms over blocks of images: memory doesn't grow with their number.

    Args:
        pixels: uint8, (B, C, H, W).
    """
    channels = pixels.shape[1]
    total, squares = torch.zeros(2, channels, dtype=torch.int64)
    for block in pixels.split(max(1, BLOCK // pixels[0:1].numel() if len(pixels) else 1)):
        counts = torch.stack(
            [torch.bincount(block[:, c].flatten(), minlength=256) for c in range(channels)]
        )
        values = torch.arange(256)
        total += (counts * values).sum(1)
        squares += (counts * values**2).sum(1)
    number = max(1, pixels.numel() // channels)
    mean = total.double() / number
    std = (squares.double() / number - mean**2).clamp(min=0).sqrt()
    return torch.stack([mean, torch.where(std > 0, std, 255.0)]) / 255


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and time of modification of a file, or -1 if there is none."""
    try:
        found = path.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns
