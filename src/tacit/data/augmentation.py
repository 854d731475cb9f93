"""Random changes of training images that keep their classes, for whole batches on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit._support import checks

LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601
RATIO = 4 / 3  # widest random resized crop relative to its height, and the inverse


@dataclass(frozen=True)
class Augmentation:
    """Random resized crops, shifts, mirror images and colour changes, drawn for each image.

    Set as `Images.augment`, it is applied to training batches only, on the model's device. All
    random numbers come from torch's global generator, whose state `tacit.fit` saves: a resumed run
    sees the same images as an uninterrupted one.

    Args:
        flip: Whether to mirror each image left to right with probability 1/2. Wrong for text and
            digits.
        crop: Largest shift in pixels, up or down and left or right; missing pixels are mirrored at
            the border. A random crop of the padded image, 0 for none.
        colour: Strength s of the changes of brightness, contrast and saturation, each by a factor
            uniform on [1 - s, 1 + s]; or three strengths. Saturation needs three channels.
        area: Smallest fraction of an image's area that a random resized crop keeps; 1 for none.
            The fraction is uniform on [area, 1], and the aspect ratio changes by up to 4/3.

    Examples:
        >>> import torch
        >>> pixels = torch.arange(48, dtype=torch.uint8).reshape(1, 3, 4, 4)
        >>> Augmentation(flip=False, crop=1)(pixels).shape
        torch.Size([1, 3, 4, 4])
        >>> torch.equal(Augmentation(flip=False, crop=0, colour=0)(pixels), pixels)
        True
    """

    flip: bool = True
    crop: int = 4
    colour: float | tuple[float, float, float] = 0.2
    area: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.flip, bool):
            raise TypeError(f"Augmentation(flip): expected True or False, received {self.flip!r}.")
        if self.crop != 0:
            checks.positive_integer("Augmentation(crop)", self.crop)
        if checks.probability("Augmentation(area)", self.area) == 0:
            raise ValueError("Augmentation(area): expected a number above 0, received 0.")
        given = [self.colour] if isinstance(self.colour, Real) else self.colour
        if not isinstance(given, Sequence) or isinstance(given, str) or len(given) not in (1, 3):
            raise TypeError(
                "Augmentation(colour): expected a strength, or three for brightness, contrast and "
                f"saturation; received {self.colour!r}."
            )
        for strength in given:
            checks.probability("Augmentation(colour)", strength)

    def __call__(self, pixels: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return changed images of the same shape.

        Args:
            pixels: uint8, (B, C, H, W).
            generator: Source of random numbers; by default torch's global generator.
        """
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            raise ValueError(
                "Augmentation: expected images of shape (B, C, H, W) and dtype uint8, received "
                f"{tuple(pixels.shape)} and {pixels.dtype}. Normalise them afterwards."
            )
        count, (height, width) = len(pixels), pixels.shape[2:]
        if self.crop >= min(height, width):
            raise ValueError(
                f"Augmentation(crop): expected less than height and width, {height} x {width}; "
                f"received {self.crop}."
            )

        def uniform(number: int) -> Tensor:
            return torch.rand(number, count, generator=generator, device=pixels.device)

        if self.area < 1:
            pixels = resized(pixels, _boxes(uniform(4), self.area))
        if self.crop or self.flip:
            draws = uniform(3)
            # The product may round up to 2 crop + 1.
            shifts = (draws[:2] * (2 * self.crop + 1)).long().clamp_(max=2 * self.crop) - self.crop
            mirrored = draws[2] < (0.5 if self.flip else 0.0)
            pixels = moved(pixels, shifts[0], shifts[1], mirrored)
        strengths = self.colour if isinstance(self.colour, Sequence) else (self.colour,) * 3
        if any(strengths):
            scale = torch.tensor(strengths, device=pixels.device)[:, None]
            pixels = recoloured(pixels, 1 + scale * (2 * uniform(3) - 1))
        return pixels


def moved(pixels: Tensor, down: Tensor, right: Tensor, mirrored: Tensor) -> Tensor:
    """Return images that are shifted, then mirrored left to right, by indexing alone.

    Args:
        pixels: Images, (B, C, H, W).
        down: Shift of each image in rows, less than H in magnitude, (B,).
        right: Shift in columns, less than W in magnitude, (B,).
        mirrored: Which images to mirror, boolean, (B,).
    """
    height, width = pixels.shape[2:]
    rows = _reflected(torch.arange(height, device=pixels.device) - down[:, None], height)
    columns = _reflected(torch.arange(width, device=pixels.device) - right[:, None], width)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    image = torch.arange(len(pixels), device=pixels.device)[:, None, None]
    found = pixels[image, :, rows[:, :, None], columns[:, None, :]]  # (B, H, W, C)
    return found.permute(0, 3, 1, 2).contiguous()


def _reflected(index: Tensor, size: int) -> Tensor:
    """Return indices outside of 0 to size - 1 mirrored at the first and the last."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def recoloured(pixels: Tensor, factors: Tensor) -> Tensor:
    """Return images with changed brightness, contrast and saturation, in this order.

    Brightness scales the pixels; contrast, their differences from the mean luminance of the image;
    saturation, their differences from the luminance of the pixel. Each result is clipped.

    Args:
        pixels: uint8, (B, C, H, W).
        factors: Factors of brightness, contrast and saturation, (3, B).
    """
    brightness, contrast, saturation = factors[:, :, None, None, None]
    x = pixels.float().mul_(brightness).clamp_(0, 255)
    mean = _luminance(x).mean((2, 3), keepdim=True)
    x = x.sub_(mean).mul_(contrast).add_(mean).clamp_(0, 255)
    if x.shape[1] == 3:
        grey = _luminance(x)
        x = x.sub_(grey).mul_(saturation).add_(grey).clamp_(0, 255)
    return x.round_().to(torch.uint8)


def _luminance(x: Tensor) -> Tensor:
    """Return the luminance of images (B, C, H, W), (B, 1, H, W)."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return (x * torch.tensor(LUMINANCE, device=x.device)[:, None, None]).sum(1, keepdim=True)


def resized(pixels: Tensor, boxes: Tensor) -> Tensor:
    """Return the part of each image within a box, enlarged to the size of the image.

    Bilinear: a box is no larger than the image, so that no smoothing is needed.

    Args:
        pixels: uint8, (B, C, H, W).
        boxes: Top, left, height and width of each box as fractions of the image, (4, B).
    """
    height, width = pixels.shape[2:]
    top, left, tall, wide = boxes[:, :, None]
    # Centres of pixels, in the coordinates of grid_sample: -1 and 1 are the edges of the image.
    y = 2 * (top + tall * _centres(height, pixels)) - 1
    x = 2 * (left + wide * _centres(width, pixels)) - 1
    grid = torch.stack(
        [x[:, None, :].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)], -1
    )
    found = F.grid_sample(pixels.float(), grid, padding_mode="border", align_corners=False)
    return found.round_().clamp_(0, 255).to(torch.uint8)


def _centres(size: int, like: Tensor) -> Tensor:
    return (torch.arange(size, device=like.device) + 0.5) / size


def _boxes(uniform: Tensor, area: float) -> Tensor:
    """Return random boxes within the image, (4, B), from numbers uniform on [0, 1), (4, B)."""
    share = area + (1 - area) * uniform[0]
    root = torch.exp(math.log(RATIO) * (uniform[1] - 0.5))  # of the aspect ratio
    tall, wide = (share.sqrt() / root).clamp(max=1), (share.sqrt() * root).clamp(max=1)
    return torch.stack([uniform[2] * (1 - tall), uniform[3] * (1 - wide), tall, wide])
