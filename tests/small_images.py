"""Images of 28 x 28 that need no network, in place of those of the tutorials."""

import torch
from torch.nn import functional as F

import tacit
from tacit.data import Images, Splits

NAMES = tuple("0123456789")


def digits():
    """Return scikit-learn's digits, enlarged."""
    return Splits(*(Images(enlarged(x), y, (0.3,), (0.3,), NAMES) for x, y in tacit.data.digits()))


def noise():
    """Return images of noise."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (200, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.arange(200) % 10)


def enlarged(pixels):
    """Return flat images of 8 x 8 in [0, 1], (B, 64), as bytes, (B, 1, 28, 28)."""
    square = (255 * pixels).to(torch.uint8).reshape(-1, 1, 8, 8)
    return F.pad(square.repeat_interleave(3, 2).repeat_interleave(3, 3), (2, 2, 2, 2))
