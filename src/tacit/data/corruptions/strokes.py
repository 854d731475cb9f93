"""Corruptions of handwriting: affine maps, stripes, lines and edges."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.data.corruptions import sampling


def shear(x: Tensor, generator: torch.Generator, angle: float) -> Tensor:
    """Shear images to a random side."""
    angles = angle * _signs(x, generator)
    ones, zeros = torch.ones_like(angles), torch.zeros_like(angles)
    return _about_the_centre(x, ones, -angles.sin(), zeros, angles.cos())


def rotate(x: Tensor, generator: torch.Generator, angle: float) -> Tensor:
    """Rotate images in a random direction, by an angle in radians."""
    angles = angle * _signs(x, generator)
    return _about_the_centre(x, angles.cos(), -angles.sin(), angles.sin(), angles.cos())


def scale(x: Tensor, generator: torch.Generator, factor: float) -> Tensor:
    """Scale images about their centre by a factor."""
    inverse = x.new_full((len(x),), 1 / factor)
    zeros = torch.zeros_like(inverse)
    return _about_the_centre(x, inverse, zeros, zeros, inverse)


def translate(x: Tensor, generator: torch.Generator, pixels: int) -> Tensor:
    """Shift images along a random diagonal."""
    moves = pixels * torch.stack([_signs(x, generator), _signs(x, generator)], -1)
    matrices = torch.cat([torch.eye(2).to(x).expand(len(x), 2, 2), moves[..., None]], -1)
    return sampling.affine(x, matrices)


def stripe(x: Tensor, generator: torch.Generator, columns: int) -> Tensor:
    """Invert a number of columns at the left and right edges."""
    width = x.shape[-1]
    place = torch.arange(width, device=x.device)
    return torch.where((place < columns) | (place >= width - columns), 1 - x, x)


def dotted_line(x: Tensor, generator: torch.Generator, lines: int) -> Tensor:
    """Draw dotted lines from left to right."""
    size, count = x.shape[-1], len(x)
    gaps = torch.arange(size, device=x.device) // 2 % 2 == 0
    for _ in range(lines):
        ends = torch.randint(0, size - 1, (2, count), generator=generator, device=x.device).to(x)
        left, right = torch.zeros_like(ends[0]), torch.full_like(ends[0], size - 1)
        line = _line(x, left, ends[0], right, ends[1])
        x = (x + torch.where(gaps, torch.zeros_like(line), line)).clamp(0, 1)
    return x


def zigzag(x: Tensor, generator: torch.Generator, lines: int) -> Tensor:
    """Draw zigzag lines from left to right."""
    size, count = x.shape[-1], len(x)
    length = 2.0  # extent of a stroke along the line, and its height
    first, last = 2, size - 3
    for _ in range(lines):
        start = torch.randint(0, size - 1, (count,), generator=generator, device=x.device).to(x)
        rise = torch.randint(-5, 5, (count,), generator=generator, device=x.device).to(x)
        angle = torch.atan(rise / (last - first))
        whole = (last - first) / angle.cos()
        strokes = int(((last - first) - length) // (2 * length)) + 1
        along = [torch.zeros_like(whole)]
        height = [torch.zeros_like(whole)]
        for i in range(strokes):
            along.append(torch.full_like(whole, (2 * i + 1) * length))
            height.append(torch.full_like(whole, (-1) ** i * length))
        rest = whole - 2 * length * (whole // (2 * length))
        along.append(whole)
        height.append(height[-1] / (2 * rest.clamp_min(1e-3)))
        columns = [
            first + a * angle.cos() - h * angle.sin() for a, h in zip(along, height, strict=True)
        ]
        rows = [
            start + a * angle.sin() + h * angle.cos() for a, h in zip(along, height, strict=True)
        ]
        for i in range(1, len(rows)):
            line = _line(x, columns[i - 1], rows[i - 1], columns[i], rows[i])
            x = (x + line).clamp(0, 1)
    return x


def canny_edges(x: Tensor, generator: torch.Generator, share: float) -> Tensor:
    """Return share times the edges found by Canny's detector, plus (1 - share) times the image.

    Images are smoothed by a Gaussian of one pixel. Ridges of the gradient magnitude above 0.1 are
    edges if they are connected to a ridge above 0.2.
    """
    smooth = sampling.gaussian_blur(x, 1.0, border="zeros")
    inside = sampling.gaussian_blur(torch.ones_like(x[:1]), 1.0, border="zeros")
    smooth = smooth / inside  # average only over pixels inside the image
    padded = F.pad(smooth, (1, 1, 1, 1), mode="replicate")
    sobel = x.new_tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
    across, down = (F.conv2d(padded, kernel[None, None]) for kernel in (-sobel, -sobel.T))
    steep = (across.square() + down.square()).sqrt()
    ridge = _ridges(steep, across, down)
    weak, strong = ridge & (steep >= 0.1), ridge & (steep >= 0.2)
    while True:  # grow strong ridges along weak ones, with 8-connectivity
        grown = (F.max_pool2d(strong.to(x), 3, 1, 1) > 0) & weak
        if grown.equal(strong):
            break
        strong = grown
    return share * strong.to(x) + (1 - share) * x


def _ridges(steep: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Return where the gradient magnitude is a local maximum along the gradient."""
    rows, columns = sampling.pixel_grid(steep)
    # Steps end on the border of the 3 x 3 neighbourhood: the larger component becomes 1.
    largest = torch.maximum(across.abs(), down.abs()).clamp_min(1e-12)
    right, below = (across / largest)[:, 0], (down / largest)[:, 0]
    kept = steep > 0
    for side in (-1, 1):
        neighbour = sampling.sampled(steep, rows + side * below, columns + side * right, "zeros")
        kept &= steep >= neighbour - 1e-6
    border = torch.zeros_like(kept)
    border[..., 1:-1, 1:-1] = True
    return kept & border


def _about_the_centre(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Return images warped by the linear map (a, b; c, d) about their centre."""
    centre = (x.shape[-1] - 1) / 2
    rows = [
        torch.stack([a, b, centre * (1 - a - b)], -1),
        torch.stack([c, d, centre * (1 - c - d)], -1),
    ]
    return sampling.affine(x, torch.stack(rows, 1))


def _signs(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return -1 or 1 for each image."""
    return 2.0 * torch.randint(0, 2, (len(x),), generator=generator, device=x.device).to(x) - 1


def _line(x: Tensor, left: Tensor, top: Tensor, right: Tensor, bottom: Tensor) -> Tensor:
    """Return a soft line for each image, (B, 1, H, W), between the columns of its endpoints."""
    rows, columns = sampling.pixel_grid(x)
    left, top, right, bottom = (end[:, None, None] for end in (left, top, right, bottom))
    slope = (bottom - top) / (right - left)
    away = (rows - top - slope * (columns - left)).abs().clamp(0, 2.3 - 1e-6)
    line = (torch.log(1 - away / 2.3) + 1).clamp(0, 1)
    between = (columns >= left.floor()) & (columns < right.ceil())
    return torch.where(between, line, torch.zeros_like(line))[:, None]
