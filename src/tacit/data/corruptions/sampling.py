"""Batched blurring, warping and resizing: the building blocks of the corruptions.

Images are (B, C, H, W) with values in [0, 1]. A filter along an axis, including its border mode, is
a small matrix, so blurring and resizing are two matrix products.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

Border: TypeAlias = Literal["zeros", "edge", "mirror", "symmetric"]
"""How a row ... d c b a continues beyond the image: 0 0 0; a a a; b c d; a b c."""

# padding_mode and align_corners of grid_sample; with the latter it reflects at pixel centres.
PADDING: dict[Border, tuple[str, bool]] = {
    "zeros": ("zeros", True),
    "edge": ("border", True),
    "mirror": ("reflection", True),
    "symmetric": ("reflection", False),
}


def sampled(x: Tensor, rows: Tensor, columns: Tensor, border: Border = "zeros") -> Tensor:
    """Return images sampled at fractional positions by bilinear interpolation.

    Args:
        x: Images, (B, C, H, W).
        rows: Row coordinates in pixels, (B, H', W').
        columns: Column coordinates in pixels, (B, H', W').
        border: How images continue beyond their border.
    """
    padding, centres = PADDING[border]
    height, width = x.shape[-2:]
    if centres:
        grid = [2 * columns / (width - 1) - 1, 2 * rows / (height - 1) - 1]
    else:
        grid = [(2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1]
    return F.grid_sample(
        x, torch.stack(grid, -1), mode="bilinear", padding_mode=padding, align_corners=centres
    )


def pixel_grid(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row and column coordinates of an image's pixels, each (H, W)."""
    height, width = x.shape[-2:]
    rows, columns = torch.arange(height), torch.arange(width)
    found = torch.meshgrid(rows.to(x), columns.to(x), indexing="ij")
    return found[0], found[1]


def affine(x: Tensor, matrices: Tensor, border: Border = "zeros") -> Tensor:
    """Return images whose value at (column, row) is the input's at A (column, row, 1).

    Args:
        x: Images, (B, C, H, W).
        matrices: A, (B, 2, 3).
        border: How images continue beyond their border.
    """
    rows, columns = pixel_grid(x)
    places = torch.stack([columns, rows, torch.ones_like(rows)])  # (3, H, W)
    moved = torch.einsum("bij,jhw->bihw", matrices, places)
    return sampled(x, moved[:, 1], moved[:, 0], border)


def vertical_blur(x: Tensor, sigma: float) -> Tensor:
    """Return images blurred by a Gaussian along their columns only, with edge padding."""
    matrix = gaussian_matrix(x.shape[-2], sigma, 4.0, "edge")
    return x if matrix is None else on(x, matrix) @ x


def gaussian_blur(
    x: Tensor, sigma: float, truncate: float = 4.0, border: Border = "edge"
) -> Tensor:
    """Return images blurred by a Gaussian truncated at `truncate` standard deviations."""
    vertical, horizontal = (gaussian_matrix(n, sigma, truncate, border) for n in x.shape[-2:])
    return x if vertical is None or horizontal is None else separable(x, vertical, horizontal)


def gaussian_matrix(size: int, sigma: float, truncate: float, border: Border) -> Tensor | None:
    """Return the matrix that blurs a line of pixels; None if it is the identity."""
    radius = int(truncate * sigma + 0.5)
    if not sigma or not radius:
        return None
    taps = torch.arange(-radius, radius + 1, dtype=torch.float64)
    kernel = torch.exp(-0.5 * (taps / sigma).square())
    return filter_matrix(size, kernel / kernel.sum(), border)


def filter_matrix(size: int, kernel: Tensor, border: Border) -> Tensor:
    """Return the matrix (size, size) that correlates a line of pixels with a kernel.

    Args:
        size: Number of pixels in the line.
        kernel: Weights at the offsets -radius to radius.
        border: How the line continues beyond its ends.
    """
    radius = len(kernel) // 2
    places = torch.arange(size)[:, None] + torch.arange(-radius, radius + 1)  # (size, taps)
    inside = (places >= 0) & (places < size)
    if border == "edge":
        places = places.clamp(0, size - 1)
    elif border == "symmetric":
        places = places % (2 * size)
        places = torch.minimum(places, 2 * size - 1 - places)
    elif border == "mirror":
        places = places % (2 * size - 2)
        places = torch.minimum(places, 2 * size - 2 - places)
    weights = kernel.expand(size, -1)
    if border == "zeros":
        places, weights = places.clamp(0, size - 1), weights * inside
    return weights.new_zeros(size, size).scatter_add_(1, places, weights)


def separable(x: Tensor, vertical: Tensor, horizontal: Tensor) -> Tensor:
    """Return images with one matrix applied along their columns and one along their rows."""
    return on(x, vertical) @ x @ on(x, horizontal).T


def on(x: Tensor, small: Tensor) -> Tensor:
    """Return a small matrix with the dtype and on the device of the images.

    The dtype is converted first, as not all devices support float64.
    """
    return small.to(x.dtype).to(x.device)


def box_matrix(before: int, after: int) -> Tensor:
    """Return the matrix (after, before) that resizes a line by averaging, as Pillow's BOX does."""
    scale = before / after
    support = max(scale, 1.0) / 2
    matrix = torch.zeros(after, before, dtype=torch.float64)
    for i in range(after):
        centre = (i + 0.5) * scale
        first, last = max(0, int(centre - support + 0.5)), min(before, int(centre + support + 0.5))
        matrix[i, first:last] = 1.0 / max(1, last - first)
    return matrix


def clipped_zoom(x: Tensor, zoom: float) -> Tensor:
    """Return the centre of images, enlarged to their size."""
    size = x.shape[-1]
    kept = math.ceil(size / zoom)
    top = (size - kept) // 2
    middle = x[..., top : top + kept, top : top + kept]
    large = round(kept * zoom)
    # Corners are aligned, as in SciPy's zoom.
    enlarged = F.interpolate(middle, (large, large), mode="bilinear", align_corners=True)
    trim = (large - size) // 2
    return enlarged[..., trim : trim + size, trim : trim + size]


def motion_blur(x: Tensor, angles: Tensor, radius: int, sigma: float) -> Tensor:
    """Return images blurred to one side, each along its own direction.

    Pixels at distances 0, 1, ..., 2 radius have Gaussian weights. Offsets are rounded to whole
    pixels, and images are edge-padded, as in ImageMagick.

    Args:
        x: Images, (B, C, H, W).
        angles: Directions in degrees, (B,).
        radius: Half of the largest distance.
        sigma: Standard deviation of the Gaussian.
    """
    height, width = x.shape[-2:]
    taps = torch.arange(2 * radius + 1, dtype=torch.float64)
    kernel = torch.exp(-0.5 * (taps / sigma).square())
    kernel /= kernel.sum()
    direction = torch.deg2rad(angles)
    flat, found = x.flatten(2), torch.zeros_like(x)
    rows, columns = (part.long() for part in pixel_grid(x))
    for distance, weight in enumerate(kernel.tolist()):
        if weight < 1e-6:
            break
        down = (distance * direction.sin() - 0.5).ceil().long()[:, None, None]
        right = (distance * direction.cos() - 0.5).ceil().long()[:, None, None]
        places = (rows + down).clamp(0, height - 1) * width + (columns + right).clamp(0, width - 1)
        index = places.flatten(1)[:, None].expand(-1, x.shape[1], -1)
        found += weight * flat.gather(2, index).reshape(x.shape)
    return found


def uniform(
    shape: tuple[int, ...], low: float, high: float, like: Tensor, generator: torch.Generator
) -> Tensor:
    """Return uniform draws between two bounds."""
    drawn = torch.rand(shape, generator=generator, device=like.device, dtype=like.dtype)
    return low + (high - low) * drawn


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Return standard normal draws."""
    return torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
