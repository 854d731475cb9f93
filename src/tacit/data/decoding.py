"""Image files of any format that Pillow reads, decoded to one size by several threads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit._support.console import progress_bar

TASK = 32  # files decoded by a thread before it reports progress
MARGIN = 2  # a JPEG is decoded at no less than this multiple of its final size
MOST_THREADS = 16
LISTED = 10  # files named in an error


def default_workers() -> int:
    """Return the number of processors that this process may use, at most 16."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MOST_THREADS, usable or 1)


@cache
def readable_suffixes() -> frozenset[str]:
    """Return the file name suffixes, in lower case, of the formats that Pillow reads."""
    from PIL import Image

    found = Image.registered_extensions()
    return frozenset(suffix for suffix, format in found.items() if format in Image.OPEN)


def decode_file(path: Path, height: int, width: int, channels: int) -> NDArray[np.uint8]:
    """Return an image file as (C, H, W), turned upright as its EXIF orientation says.

    The image is resized, with antialiasing, until it just covers H x W, and its centre is kept. Of
    an animation, the first frame is read; transparency is dropped.

    Args:
        path: The file.
        height: Height H of the result.
        width: Width W of the result.
        channels: 3 for red, green and blue, 1 for grey.

    Raises:
        Exception: If the file is damaged or missing; decoders raise exceptions of many types.
    """
    from PIL import Image, ImageOps

    with Image.open(path) as file:
        # JPEG decodes at 1/2, 1/4 or 1/8 of the size for a fraction of the time.
        side = MARGIN * max(height, width)
        file.draft(None, (side, side))
        upright = ImageOps.exif_transpose(file)
        image = _eight_bits(upright, file.format, "RGB" if channels == 3 else "L")
    scale = min(image.width / width, image.height / height)
    left, top = (
        max(0.0, n - scale * m) / 2 for n, m in zip(image.size, (width, height), strict=True)
    )
    box = (left, top, image.width - left, image.height - top)
    resized = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized).reshape(height, width, channels).transpose(2, 0, 1)


def _eight_bits(image: Any, form: str | None, mode: str) -> Any:
    """Return a Pillow image in mode RGB or L."""
    from PIL import Image

    # Pillow opens 16-bit grey as I;16, older versions a PNG as I, and would clip it to 8 bits.
    if image.mode.startswith("I;16") or (image.mode == "I" and form == "PNG"):
        values = np.asarray(image).astype(np.int64) >> 8
        image = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no fixed range; convert them to 8 bits")
    elif "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns about palettes with transparency otherwise
    return image.convert(mode)


def decode_files(paths: Sequence[Path], out: NDArray[np.uint8], workers: int) -> dict[int, str]:
    """Decode files into the rows of an array, and return the reasons of those that failed.

    Threads suffice, since Pillow releases the interpreter lock while it decodes and resizes. Memory
    is bounded by the images being decoded.

    Args:
        paths: The files.
        out: Array of shape (B, C, H, W) to fill, often a memory map; rows of files that fail keep
            their values.
        workers: Number of threads.

    Returns:
        Row -> reason of the failure.
    """
    failures: dict[int, str] = {}
    tasks = [range(at, min(at + TASK, len(paths))) for at in range(0, len(paths), TASK)]
    with (
        progress_bar("decoding images", len(paths)) as advance,
        ThreadPoolExecutor(workers) as threads,
    ):
        try:
            for done in as_completed([threads.submit(_decode_rows, paths, out, t) for t in tasks]):
                count, failed = done.result()
                failures.update(failed)
                advance(count)
        except BaseException:  # an interrupt from the keyboard, for instance
            threads.shutdown(wait=True, cancel_futures=True)
            raise
    return dict(sorted(failures.items()))


def _decode_rows(
    paths: Sequence[Path], out: NDArray[np.uint8], rows: Sequence[int]
) -> tuple[int, dict[int, str]]:
    """Return the number of files, and row -> reason of those that failed."""
    tried = {row: _decode_row(paths[row], out[row]) for row in rows}
    return len(rows), {row: why for row, why in tried.items() if why is not None}


def _decode_row(path: Path, out: NDArray[np.uint8]) -> str | None:
    """Decode a file into an array (C, H, W); return the reason if it failed."""
    channels, height, width = out.shape
    try:
        out[:] = decode_file(path, height, width, channels)
    except Exception as error:  # a damaged file can fail in any way
        return reason(error)
    return None


def listed(names: Iterable[str]) -> str:
    """Return the first ten names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - LISTED} more" if len(every) > LISTED else ""
    return ", ".join(every[:LISTED]) + more


def reason(error: Exception) -> str:
    """Return why a file can't be decoded, in a few words without its path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return "not an image that Pillow can read" if "cannot identify" in text else text
