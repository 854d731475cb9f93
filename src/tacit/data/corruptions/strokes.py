"""What happens to handwriting: moved, turned, crossed out, or only its edges kept."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.data.corruptions import sampling


def shear(x: Tensor, generator: torch.Generator, angle: float) -> Tensor:
    """Slant images to either side."""
    angles = angle * _signs(x, generator)
    ones, zeros = torch.ones_like(angles), torch.zeros_like(angles)
    return _about_the_centre(x, ones, -angles.sin(), zeros, angles.cos())


def rotate(x: Tensor, generator: torch.Generator, angle: float) -> Tensor:
    """Turn images to either side."""
    angles = angle * _signs(x, generator)
    return _about_the_centre(x, angles.cos(), -angles.sin(), angles.sin(), angles.cos())


def scale(x: Tensor, generator: torch.Generator, factor: float) -> Tensor:
    """Make what is shown smaller."""
    inverse = x.new_full((len(x),), 1 / factor)
    zeros = torch.zeros_like(inverse)
    return _about_the_centre(x, inverse, zeros, zeros, inverse)


def translate(x: Tensor, generator: torch.Generator, pixels: int) -> Tensor:
    """Move images along a diagonal."""
    moves = pixels * torch.stack([_signs(x, generator), _signs(x, generator)], -1)
    matrices = torch.cat([torch.eye(2).to(x).expand(len(x), 2, 2), moves[..., None]], -1)
    return sampling.affine(x, matrices)


def stripe(x: Tensor, generator: torch.Generator, columns: int) -> Tensor:
    """Invert the columns at the left and at the right."""
    width = x.shape[-1]
    place = torch.arange(width, device=x.device)
    return torch.where((place < columns) | (place >= width - columns), 1 - x, x)


def dotted_line(x: Tensor, generator: torch.Generator, lines: int) -> Tensor:
    """Draw dotted lines from the left to the right."""
    size, count = x.shape[-1], len(x)
    gaps = torch.arange(size, device=x.device) // 2 % 2 == 0
    for _ in range(lines):
        ends = torch.randint(0, size - 1, (2, count), generator=generator, device=x.device).to(x)
        left, right = torch.zeros_like(ends[0]), torch.full_like(ends[0], size - 1)
        line = _line(x, left, ends[0], right, ends[1])
        x = (x + torch.where(gaps, torch.zeros_like(line), line)).clamp(0, 1)
    return x


def zigzag(x: Tensor, generator: torch.Generator, lines: int) -> Tensor:
    """Draw zigzag lines from the left to the right."""
    size, count = x.shape[-1], len(x)
    length = 2.0  # of a stroke along the line, and its height
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
    """Keep edges only (Canny's detector), or mix the image with them.

    Smoothing by a Gaussian of one pixel; the gradient's ridges above 0.1, in so far as they are
    connected with one above 0.2.
    """
    smooth = sampling.gaussian_blur(x, 1.0, border="zeros")
    inside = sampling.gaussian_blur(torch.ones_like(x[:1]), 1.0, border="zeros")
    smooth = smooth / inside  # what lies beyond the border doesn't count
    padded = F.pad(smooth, (1, 1, 1, 1), mode="replicate")
    sobel = x.new_tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
    across, down = (F.conv2d(padded, kernel[None, None]) for kernel in (-sobel, -sobel.T))
    steep = (across.square() + down.square()).sqrt()
    ridge = _ridges(steep, across, down)
    weak, strong = ridge & (steep >= 0.1), ridge & (steep >= 0.2)
    while True:  # grow the strong ones along the weak ones, to all eight sides
        grown = (F.max_pool2d(strong.to(x), 3, 1, 1) > 0) & weak
        if grown.equal(strong):
            break
        strong = grown
    return share * strong.to(x) + (1 - share) * x


def _ridges(steep: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Return where the gradient is not smaller than on either side along its own direction."""
    rows, columns = sampling.pixel_grid(steep)
    # To the border of the 3 x 3 neighbours: the larger component becomes 1.
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
    """Return images whose pixels come from the matrix (a, b; c, d) times their own place."""
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
    """Return a soft line for each image, (B, 1, H, W), between the columns of its ends."""
    rows, columns = sampling.pixel_grid(x)
    left, top, right, bottom = (end[:, None, None] for end in (left, top, right, bottom))
    slope = (bottom - top) / (right - left)
    away = (rows - top - slope * (columns - left)).abs().clamp(0, 2.3 - 1e-6)
    line = (torch.log(1 - away / 2.3) + 1).clamp(0, 1)
    between = (columns >= left.floor()) & (columns < right.ceil())
    return torch.where(between, line, torch.zeros_like(line))[:, None]
