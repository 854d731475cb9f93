"""Decoders of published file formats into tensors."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

SHEET_LIMIT = 1 << 26  # bytes of a spreadsheet's table; parsed, it takes several times as much


def idx(content: bytes) -> Tensor:
    """Return the array of an idx file of bytes, MNIST's format: sizes, then values.

    Args:
        content: Uncompressed content of the file.
    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ValueError("not an idx file of bytes: wrong magic bytes.")
    dimensions = content[3]
    shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if values.size != int(np.prod(shape)):
        raise ValueError(f"damaged idx file: expected {shape} values, received {values.size}.")
    return torch.from_numpy(values.reshape(shape).copy())


def cifar_binary(content: bytes, labels: int) -> tuple[Tensor, Tensor]:
    """Return images (B, 3, 32, 32) and labels (B,) of CIFAR's binary format.

    Args:
        content: Content of the file.
        labels: Number of label bytes before each image, the last of which is returned: 1 for
            CIFAR-10, 2 for CIFAR-100 (coarse, then fine).
    """
    row = labels + 3 * 32 * 32
    if not content or len(content) % row:
        raise ValueError(f"not a CIFAR file: {len(content)} bytes, not a multiple of {row}.")
    rows = torch.from_numpy(np.frombuffer(content, np.uint8).reshape(-1, row).copy())
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1].long()


def picture(content: bytes) -> Tensor:
    """Return a PNG or JPEG image, (3, H, W); grey images get three equal channels."""
    image = _opened(content).convert("RGB")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def picture_rows(content: bytes, height: int, width: int) -> Tensor:
    """Return the images of a PNG file that holds one image per row, (B, 3, height, width).

    Args:
        content: Content of the file; each of its rows is a flattened image.
        height: Height of an image.
        width: Width of an image.
    """
    image = np.array(_opened(content).convert("RGB"))
    if image.shape[1] != height * width:
        raise ValueError(f"expected rows of {height} x {width} pixels, received {image.shape[1]}.")
    rows = torch.from_numpy(image).reshape(-1, height, width, 3)
    return rows.permute(0, 3, 1, 2).contiguous()


def npy(content: bytes) -> Tensor:
    """Return the array of an npy file; pickled objects, which could run code, are refused."""
    return torch.from_numpy(np.load(io.BytesIO(content), allow_pickle=False))


def numbers(content: bytes, separator: str | None = None, header: int = 0) -> Tensor:
    """Return the numeric table of a text file, (rows, columns), in float64.

    Args:
        content: Content of the file.
        separator: Column separator; by default whitespace.
        header: Number of header lines to skip.
    """
    lines = content.decode("utf-8").splitlines()[header:]
    rows = [[float(cell) for cell in line.split(separator)] for line in lines if line.strip()]
    return torch.tensor(rows, dtype=torch.float64)


def keel(content: bytes) -> Tensor:
    """Return the numeric table of a file in KEEL's format: a header of @ lines, then CSV."""
    lines = [line for line in content.splitlines() if not line.lstrip().startswith(b"@")]
    return numbers(b"\n".join(lines), separator=",")


def json_numbers(content: bytes) -> Tensor:
    """Return the list of integers of a JSON file."""
    return torch.tensor(json.loads(content), dtype=torch.long)


def spreadsheet(content: bytes, sheet: str = "xl/worksheets/sheet1.xml") -> Tensor:
    """Return the numeric rows of an xlsx file, (rows, columns); rows with text are skipped.

    Args:
        content: Content of the file.
        sheet: Path of the sheet within the file.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open(sheet) as file:
        text = file.read(SHEET_LIMIT + 1)
    if len(text) > SHEET_LIMIT:
        raise ValueError(f"{sheet} unpacks to more than {SHEET_LIMIT} bytes; not read.")
    root = ElementTree.fromstring(text)
    space = {"x": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}
    rows: list[Sequence[float]] = []
    for row in root.iterfind(".//x:row", space):
        cells = [cell for cell in row.iterfind("x:c", space) if cell.find("x:v", space) is not None]
        if cells and all(cell.get("t", "n") == "n" for cell in cells):
            rows.append([float(str(cell.findtext("x:v", None, space))) for cell in cells])
    return torch.tensor(rows, dtype=torch.float64)


def _opened(content: bytes) -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "Pillow is needed to read images: pip install 'tacit-torch[data]'", name="PIL"
        ) from None
    return Image.open(io.BytesIO(content))
