"""Image corruptions of the published sets: noise, blur, weather and digital artefacts.

The code is batched and runs on any device. Its random draws are not those of the originals: images
differ from the published ones as two runs of the originals would. Frost is synthesised instead of
taken from photographs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.data.corruptions import blur, digital, noise, strokes, weather
from tacit.data.corruptions.severities import MNIST_PUBLISHED, TABLES, Kind

__all__ = ["CORRUPTIONS", "Kind", "corrupt"]

CORRUPTIONS: dict[Kind, tuple[str, ...]] = {kind: tuple(table) for kind, table in TABLES.items()}
"""Names of the corruptions for each kind of images."""

CHUNK = 500  # images per chunk; another size gives other images for the same seed
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    function.__name__: function
    for function in (
        noise.gaussian_noise, noise.shot_noise, noise.impulse_noise, blur.defocus_blur,
        blur.glass_blur, blur.motion_blur, blur.zoom_blur, weather.snow, weather.frost, weather.fog,
        weather.brightness, weather.spatter, digital.contrast, digital.elastic_transform,
        digital.pixelate, digital.jpeg_compression, strokes.shear, strokes.scale, strokes.rotate,
        strokes.translate, strokes.stripe, strokes.dotted_line, strokes.zigzag,
        strokes.canny_edges,
    )
}  # fmt: skip


def corrupt(
    pixels: Tensor,
    name: str,
    severity: int | None = None,
    *,
    kind: Kind | None = None,
    seed: int = 0,
) -> Tensor:
    """Return corrupted images.

    The same seed gives the same images on the same device, whatever the global random state.

    Args:
        pixels: Square images, (B, C, H, W), uint8.
        name: Name of the corruption, one of `CORRUPTIONS[kind]`.
        severity: From 1 to 5; by default 5, and for MNIST-C the published severity.
        kind: Table of severities: "cifar", "tiny_imagenet" or "mnist"; by default "mnist" for grey
            images, otherwise according to their size.
        seed: Random seed.

    Returns:
        Corrupted images, of the same shape and dtype.

    Examples:
        >>> import torch
        >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
        >>> corrupt(images, "fog", severity=3).shape
        torch.Size([4, 3, 32, 32])
    """
    _check(pixels)
    kind = _kind(pixels) if kind is None else kind
    arguments = _arguments(name, severity, kind)
    if kind == "mnist" and pixels.shape[1] != 1:
        raise ValueError("kind: the corruptions of MNIST-C are for grey images with one channel.")
    generator = torch.Generator(device=pixels.device)
    generator.manual_seed(zlib.crc32(f"{seed} {kind} {name} {arguments}".encode()))
    found = torch.empty_like(pixels, memory_format=torch.contiguous_format)
    for first in range(0, len(pixels), CHUNK):
        at = slice(first, first + CHUNK)
        images = 255 * FUNCTIONS[name](pixels[at].float() / 255, generator, *arguments).clamp(0, 1)
        # MNIST-C was rounded, the others truncated; 1e-3 keeps integers despite rounding errors.
        whole = images.round() if kind == "mnist" else (images + 1e-3).floor()
        found[at] = whole.to(torch.uint8)
    return found


def _kind(pixels: Tensor) -> Kind:
    if pixels.shape[1] == 1:
        return "mnist"
    return "tiny_imagenet" if pixels.shape[-1] >= 64 else "cifar"


def _arguments(name: str, severity: int | None, kind: Kind) -> tuple[Any, ...]:
    if kind not in TABLES:
        raise ValueError(f"kind: expected {', '.join(TABLES)}; received {kind!r}.")
    if name not in TABLES[kind]:
        known = ", ".join(TABLES[kind])
        raise ValueError(f"corrupt: for {kind}, expected one of {known}; received {name!r}.")
    if severity is None:
        severity = MNIST_PUBLISHED[name] if kind == "mnist" else 5
    if not isinstance(severity, int) or not 1 <= severity <= 5:
        raise ValueError(f"severity: expected 1 to 5, received {severity!r}.")
    return TABLES[kind][name][severity - 1]


def _check(pixels: Tensor) -> None:
    shape = tuple(pixels.shape)
    if pixels.dtype != torch.uint8 or pixels.ndim != 4:
        raise ValueError(
            f"corrupt: expected images (B, C, H, W) of uint8, received {shape} of {pixels.dtype}."
        )
    if shape[2] != shape[3] or shape[2] < 28 or shape[1] not in (1, 3):
        raise ValueError(
            "corrupt: expected square images of at least 28 x 28 with 1 or 3 channels, received "
            f"{shape}."
        )
