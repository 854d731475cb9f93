"""Blurs: defocus, glass, motion and zoom."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.data.corruptions import sampling


def defocus_blur(x: Tensor, generator: torch.Generator, radius: float, soft: float) -> Tensor:
    """Convolve with a disk whose edge is smoothed by a Gaussian."""
    reach = torch.arange(-8, 9, dtype=torch.float64)
    disk = (reach[:, None].square() + reach.square() <= radius**2).double()
    disk = disk / disk.sum()
    # The Gaussian has three taps, whatever its standard deviation.
    taps = torch.exp(-0.5 * (torch.arange(-1, 2, dtype=torch.float64) / soft).square())
    matrix = sampling.filter_matrix(17, taps / taps.sum(), "mirror")
    kernel = sampling.separable(disk, matrix, matrix)
    cut = 8 - int(kernel.sum(0).nonzero().min())  # drop zeros at the border, which cost time
    kernel = sampling.on(x, kernel[8 - cut : 9 + cut, 8 - cut : 9 + cut])
    padded = F.pad(x, (cut, cut, cut, cut), mode="reflect").flatten(0, 1)[:, None]
    return F.conv2d(padded, kernel[None, None]).reshape(x.shape)


def glass_blur(
    x: Tensor, generator: torch.Generator, sigma: float, reach: int, rounds: int
) -> Tensor:
    """Blur, swap pixels with nearby ones, and blur again.

    As in the published sets, pixels of color images are overwritten instead of swapped; grey images
    are blurred along their columns only, and half of their pixels are swapped.
    """
    smooth = sampling.vertical_blur if x.shape[1] == 1 else sampling.gaussian_blur
    x = (smooth(x, sigma) * 255).floor() / 255
    count, channels, height, width = x.shape
    flat = x.permute(2, 3, 1, 0).reshape(height * width, channels, count).clone()
    everyone = torch.arange(count, device=x.device)
    for _ in range(rounds):
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                size = (2, count)
                shift = torch.randint(-reach, reach, size, generator=generator, device=x.device)
                other = (row + shift[0]) * width + column + shift[1]
                own = row * width + column
                near = flat[other, :, everyone].T  # (C, B)
                if channels == 1:
                    coin = torch.rand(count, generator=generator, device=x.device) < 0.5
                    here = flat[own].clone()
                    flat[own] = torch.where(coin, near, here)
                    flat[other, :, everyone] = torch.where(coin, here, near).T
                else:
                    flat[own] = near
    found = flat.reshape(height, width, channels, count).permute(3, 2, 0, 1)
    return smooth(found.contiguous(), sigma)


def motion_blur(x: Tensor, generator: torch.Generator, radius: int, sigma: float) -> Tensor:
    """Blur along a random direction within 45 degrees of the horizontal."""
    angles = sampling.uniform((len(x),), -45, 45, x, generator)
    return sampling.motion_blur(x, angles, radius, sigma)


def zoom_blur(x: Tensor, generator: torch.Generator, end: float, step: float) -> Tensor:
    """Average the image and its enlargements by factors from 1 to `end`, exclusive."""
    zooms = np.arange(1, end, step).tolist()  # as published: rounding may include `end`
    total = x + sum(sampling.clipped_zoom(x, zoom) for zoom in zooms)
    return total / (len(zooms) + 1)
