"""Weather: snow, frost, fog, brightness and spatter."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.data.corruptions import sampling

# Mean colors, and standard deviations within 32 x 32 pixels, measured on the five photographs of
# frost used in the published sets. The photographs themselves are not ours to distribute.
FROST_COLORS = (
    (0.305, 0.585, 0.650), (0.787, 0.805, 0.841), (0.787, 0.805, 0.841), (0.540, 0.599, 0.648),
    (0.441, 0.484, 0.528),
)  # fmt: skip
FROST_CONTRASTS = (0.058, 0.059, 0.059, 0.076, 0.121)


def snow(
    x: Tensor,
    generator: torch.Generator,
    level: float,
    spread: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    kept: float,
) -> Tensor:
    """Add motion-blurred snowflakes and whiten the image.

    Args:
        x: Images.
        generator: Source of randomness.
        level: Mean of the noise from which flakes are made.
        spread: Standard deviation of the noise.
        zoom: Magnification of the flakes.
        threshold: Noise below it is set to 0.
        radius: Radius of the motion blur.
        sigma: Standard deviation of the motion blur.
        kept: Weight of the original image; the rest is its whitened version.
    """
    noise = sampling.normal((len(x), 1, *x.shape[-2:]), x, generator)
    layer = sampling.clipped_zoom(level + spread * noise, zoom)
    layer = torch.where(layer < threshold, torch.zeros_like(layer), layer)
    layer = (layer.clamp(0, 1) * 255).floor() / 255
    angles = sampling.uniform((len(x),), -135, -45, x, generator)
    layer = sampling.motion_blur(layer, angles, radius, sigma)
    x = kept * x + (1 - kept) * torch.maximum(x, 1.5 * _grey(x) + 0.5)
    return x + layer + layer.rot90(2, (-2, -1))


def frost(x: Tensor, generator: torch.Generator, kept: float, amount: float) -> Tensor:
    """Overlay the image with ice crystals.

    The crystals are synthetic: ridges of smooth noise at several scales, stretched in one
    direction. Their mean color and contrast are those of the photographs used in the published
    sets.
    """
    pane = torch.randint(len(FROST_COLORS), (len(x),), generator=generator, device=x.device)
    texture = _crystals(x, generator)
    spread = texture.std((-2, -1), keepdim=True).clamp_min(1e-6)
    texture = (texture - texture.mean((-2, -1), keepdim=True)) / spread
    colors = x.new_tensor(FROST_COLORS)[pane, :, None, None]
    contrasts = x.new_tensor(FROST_CONTRASTS)[pane, None, None, None]
    ice = (colors + contrasts * texture).clamp(0, 1)
    return kept * x + amount * (ice if x.shape[1] == 3 else _grey(ice))


def fog(x: Tensor, generator: torch.Generator, thickness: float, decay: float, size: int) -> Tensor:
    """Add clouds and darken the result, so that no pixel exceeds the image's maximum.

    Args:
        x: Images.
        generator: Source of randomness.
        thickness: Weight of the clouds.
        decay: Factor by which the details of the clouds shrink at each finer scale.
        size: Size of the fractal that is cropped to the image, a power of two; raised if the image
            is larger.
    """
    size = max(int(size), 1 << (x.shape[-1] - 1).bit_length())
    brightest = x.amax((1, 2, 3), keepdim=True)
    clouds = plasma(len(x), size, decay, x, generator)[:, None, : x.shape[-2], : x.shape[-1]]
    return (x + thickness * clouds) * brightest / (brightest + thickness)


def brightness(x: Tensor, generator: torch.Generator, amount: float) -> Tensor:
    """Increase the value (in HSV), keeping hue and saturation."""
    value = x.amax(1, keepdim=True)
    lit = (value + amount).clamp(0, 1)
    return torch.where(value > 0, x * lit / value.clamp_min(1e-6), lit.expand_as(x))


def spatter(
    x: Tensor,
    generator: torch.Generator,
    level: float,
    spread: float,
    size: float,
    threshold: float,
    soft: float,
) -> Tensor:
    """Cover patches of the image with mud.

    Args:
        x: Images.
        generator: Source of randomness.
        level: Mean of the noise from which patches are made.
        spread: Standard deviation of the noise.
        size: Standard deviation of the blur of the noise, which sets the size of the patches.
        threshold: Blurred noise above it is mud.
        soft: Standard deviation of the blur of the patches; values below 0.8 are set to 0.
    """
    noise = sampling.normal((len(x), 1, *x.shape[-2:]), x, generator)
    liquid = sampling.gaussian_blur(level + spread * noise, size)
    mud = sampling.gaussian_blur((liquid > threshold).to(x), soft)
    mud = torch.where(mud < 0.8, torch.zeros_like(mud), mud)
    return x * (1 - mud) + 63 / 255 * mud


def plasma(count: int, size: int, decay: float, like: Tensor, generator: torch.Generator) -> Tensor:
    """Return fractal clouds in [0, 1], (count, size, size), by the diamond-square algorithm.

    The midpoint of four points is their mean plus noise, at ever finer scales, with periodic
    borders. The amplitude of the noise starts at 100^2 and is divided by decay^2 at each scale.

    Args:
        count: Number of fractals.
        size: Height and width, a power of two.
        decay: Square root of the factor by which the noise shrinks at each scale.
        like: Tensor with the dtype and device of the result.
        generator: Source of randomness.
    """
    field = like.new_zeros(count, size, size)
    step, amplitude = size, 100.0

    def near(total: Tensor) -> Tensor:
        chance = sampling.uniform(tuple(total.shape), -amplitude, amplitude, like, generator)
        return total / 4 + amplitude * chance

    while step >= 2:
        half = step // 2
        corners = field[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        middles = near(pairs + pairs.roll(-1, 2))
        field[:, half::step, half::step] = middles
        across = middles + middles.roll(1, 1) + corners + corners.roll(-1, 2)
        field[:, ::step, half::step] = near(across)
        down = middles + middles.roll(1, 2) + corners + corners.roll(-1, 1)
        field[:, half::step, ::step] = near(down)
        step, amplitude = half, amplitude / decay
    field = field - field.amin((1, 2), keepdim=True)
    return field / field.amax((1, 2), keepdim=True)


def _crystals(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return ridges of smooth noise at several scales, stretched in one direction, (B, 1, H, W)."""
    count, size = len(x), x.shape[-1]
    found = x.new_zeros(count, 1, size, size)
    angles = sampling.uniform((count,), 0, torch.pi, x, generator)
    rows, columns = sampling.pixel_grid(x)
    centre = (size - 1) / 2
    cosine, sine = angles.cos()[:, None, None], angles.sin()[:, None, None]
    along = (columns - centre) * cosine + (rows - centre) * sine
    across = (rows - centre) * cosine - (columns - centre) * sine
    for scale in (3, 6, 12):
        coarse = sampling.normal((count, 1, scale + 1, scale + 1), x, generator)
        noise = F.interpolate(coarse, (size, size), mode="bicubic", align_corners=True)
        # Needles: three times as long as wide.
        noise = sampling.sampled(noise, centre + across, centre + along / 3, "symmetric")
        found += (1 - noise.abs()).clamp_min(0) / scale
    return found


def _grey(x: Tensor) -> Tensor:
    """Return the luminance, (B, 1, H, W)."""
    if x.shape[1] == 1:
        return x
    weights = x.new_tensor([0.299, 0.587, 0.114])
    return (x * weights[:, None, None]).sum(1, keepdim=True)
