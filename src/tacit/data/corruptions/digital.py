"""Digital artefacts: low contrast, elastic warps, pixelation and JPEG compression."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.data.corruptions import sampling

# Quantisation tables of the JPEG standard, annex K.
LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61), (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56), (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77), (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101), (72, 92, 95, 98, 112, 100, 103, 99),
)  # fmt: skip
CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99), (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99), (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)  # fmt: skip
# RGB to YCbCr, without the offset of 128.
TO_YCC = (
    (0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312),
)  # fmt: skip


def contrast(x: Tensor, generator: torch.Generator, factor: float) -> Tensor:
    """Scale the deviations from each channel's mean by a factor."""
    mean = x.mean((-2, -1), keepdim=True)
    return mean + factor * (x - mean)


def elastic_transform(
    x: Tensor, generator: torch.Generator, strength: float, smooth: float, shift: float
) -> Tensor:
    """Apply a random affine map, then a smooth random displacement of every pixel.

    Args:
        x: Images.
        generator: Source of randomness.
        strength: Amplitude of the displacements before smoothing, relative to the image size.
        smooth: Standard deviation of the Gaussian that smooths them, relative to the image size.
        shift: Maximum shift, in each coordinate, of the three points that define the affine map,
            relative to the image size.
    """
    count, size = len(x), x.shape[-1]
    middle, third = size // 2, size // 3
    corners = [(third, third), (third, -third), (-third, -third)]
    before = torch.tensor([[middle + a, middle + b] for a, b in corners], dtype=torch.float64)
    moves = sampling.uniform((count, 3, 2), -shift * size, shift * size, x, generator)
    after = before + moves.cpu().double()
    # The map takes new points to old points: A (new, 1) = old.
    points = torch.cat([after, torch.ones_like(after[..., :1])], -1)
    matrices = torch.linalg.solve(points, before.expand(count, 3, 2)).transpose(1, 2)
    x = sampling.affine(x, sampling.on(x, matrices), "mirror")
    if not strength:
        return x
    fields = sampling.uniform((count, 2, size, size), -1, 1, x, generator)
    fields = strength * size * sampling.gaussian_blur(fields, smooth * size, 3.0, "symmetric")
    rows, columns = sampling.pixel_grid(x)
    return sampling.sampled(x, rows + fields[:, 0], columns + fields[:, 1], "symmetric")


def pixelate(x: Tensor, generator: torch.Generator, factor: float) -> Tensor:
    """Downsample images and upsample them again, with box filters."""
    size = x.shape[-1]
    small = int(size * factor)
    down, up = sampling.box_matrix(size, small), sampling.box_matrix(small, size)
    coarse = (sampling.separable(x, down, down) * 255).round() / 255
    return (sampling.separable(coarse, up, up) * 255).round() / 255


def jpeg_compression(x: Tensor, generator: torch.Generator, quality: int) -> Tensor:
    """Apply the lossy steps of JPEG compression, without its lossless entropy coding.

    Luminance, and chrominance at half the resolution, are transformed in blocks of 8 x 8, and their
    DCT coefficients are rounded to multiples that depend on the quality.
    """
    pixels = 255 * x
    if x.shape[1] == 1:
        return _rounded_blocks(pixels - 128, LUMINANCE, quality).add(128).round() / 255
    matrix = torch.tensor(TO_YCC, dtype=torch.float64)
    planes = torch.einsum("ij,bjhw->bihw", sampling.on(x, matrix), pixels).round()
    bright = _rounded_blocks(planes[:, :1] - 128, LUMINANCE, quality) + 128
    colors = F.avg_pool2d(planes[:, 1:], 2, ceil_mode=True).round()
    colors = _rounded_blocks(colors, CHROMINANCE, quality)
    colors = F.interpolate(colors.round(), bright.shape[-2:], mode="bilinear")
    planes = torch.cat([bright.round(), colors], 1)
    return torch.einsum("ij,bjhw->bihw", sampling.on(x, matrix.inverse()), planes).round() / 255


def _rounded_blocks(plane: Tensor, table: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    """Return planes (B, C, H, W) with the DCT coefficients of their 8 x 8 blocks quantised."""
    height, width = plane.shape[-2:]
    missing = (-width % 8, -height % 8)
    padded = F.pad(plane, (0, missing[0], 0, missing[1]), mode="replicate")
    blocks = padded.unfold(2, 8, 8).unfold(3, 8, 8)  # (B, C, H / 8, W / 8, 8, 8)
    cosines = sampling.on(plane, _cosines())
    steps = plane.new_tensor(table)
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    steps = ((steps * scale + 50) / 100).floor().clamp(1, 255)
    parts = (cosines @ blocks @ cosines.T) / steps
    # Round half away from zero; 0.5001 includes halves that rounding errors made smaller.
    frequencies = parts.sign() * (parts.abs() + 0.5001).floor() * steps
    blocks = cosines.T @ frequencies @ cosines
    joined = blocks.permute(0, 1, 2, 4, 3, 5).reshape(padded.shape)
    return joined[..., :height, :width].clamp(-128, 127)


def _cosines() -> Tensor:
    """Return the orthogonal matrix of the discrete cosine transform, (8, 8)."""
    places = torch.arange(8, dtype=torch.float64)
    matrix = torch.cos(math.pi * places[:, None] * (2 * places + 1) / 16) / 2
    matrix[0] /= math.sqrt(2)
    return matrix
