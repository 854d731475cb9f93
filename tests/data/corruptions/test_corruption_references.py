"""The batched corruptions against SciPy, Pillow and plain loops over single images."""

import colorsys
import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch.testing import assert_close

from tacit.data.corruptions import FUNCTIONS, corrupt, sampling
from tacit.data.corruptions.severities import TABLES

GENERATOR = torch.Generator()
BORDERS = {"zeros": "constant", "edge": "nearest", "mirror": "mirror", "symmetric": "reflect"}


def images(channels=3, size=32, count=4):
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, channels, 8, 8, generator=generator, dtype=torch.float64)
    return torch.nn.functional.interpolate(coarse, (size, size), mode="bilinear")


def each_channel(x, function):
    return torch.from_numpy(
        np.stack([[function(channel) for channel in image] for image in x.numpy()])
    )


@pytest.mark.parametrize("border", list(BORDERS))
@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
def test_gaussian_blur(border, sigma):
    x = images()
    expected = each_channel(
        x, lambda c: ndimage.gaussian_filter(c, sigma, truncate=4.0, mode=BORDERS[border])
    )
    assert_close(sampling.gaussian_blur(x, sigma, border=border), expected)


@pytest.mark.parametrize("border", list(BORDERS))
def test_fractional_positions(border):
    x = images()
    rows, columns = sampling.pixel_grid(x)
    moves = 6 * torch.randn(2, 4, 32, 32, dtype=torch.float64)
    if border == "zeros":  # SciPy and torch interpolate differently across the border: stay inside
        moves = moves.clamp(-1, 1)
        rows, columns = rows.clamp(2, 29), columns.clamp(2, 29)
    places = (rows + moves[0], columns + moves[1])
    found = sampling.sampled(x, *places, border)
    for i in range(4):
        for c in range(3):
            expected = ndimage.map_coordinates(
                x[i, c].numpy(), [p[i].numpy() for p in places], order=1, mode=BORDERS[border]
            )
            assert_close(found[i, c], torch.from_numpy(expected))


@pytest.mark.parametrize("zoom", [1.0, 1.05, 1.25, 1.75, 2.25])
@pytest.mark.parametrize("size", [28, 32, 64])
def test_clipped_zoom(zoom, size):
    x = images(1, size, 2)

    def reference(channel):
        kept = math.ceil(size / zoom)
        top = (size - kept) // 2
        large = ndimage.zoom(channel[top : top + kept, top : top + kept], zoom, order=1)
        trim = (large.shape[0] - size) // 2
        return large[trim : trim + size, trim : trim + size]

    assert_close(sampling.clipped_zoom(x, zoom), each_channel(x, reference))


@pytest.mark.parametrize("factor", [0.95, 0.9, 0.85, 0.75, 0.65, 0.5])
def test_pixelate(factor):
    x = (255 * images()).round().to(torch.uint8)
    found = (FUNCTIONS["pixelate"](x.double() / 255, GENERATOR, factor) * 255).round()
    small = int(32 * factor)
    for image, ours in zip(x, found, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        picture = picture.resize((small, small), Image.BOX).resize((32, 32), Image.BOX)
        theirs = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        assert (ours - theirs).abs().max() <= 1  # Pillow rounds after each direction


@pytest.mark.parametrize("quality", [80, 65, 58, 50, 40, 25])
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (1, 32), (3, 32), (3, 64)])
def test_jpeg(quality, channels, size):
    noise = 0.1 * torch.randn(4, channels, size, size, dtype=torch.float64)
    x = (255 * (images(channels, size) + noise).clamp(0, 1)).round().to(torch.uint8)
    found = (FUNCTIONS["jpeg_compression"](x.double() / 255, GENERATOR, quality) * 255).clamp(
        0, 255
    )
    for image, ours in zip(x, found, strict=True):
        stream = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).squeeze(-1).numpy()).save(
            stream, "JPEG", quality=quality
        )
        theirs = torch.from_numpy(np.array(Image.open(stream))).reshape(size, size, channels)
        theirs = theirs.permute(2, 0, 1).double()
        lost = [(image.double() - other).square().mean().sqrt() for other in (ours, theirs)]
        # If a coefficient lies midway between two multiples, libjpeg's integer arithmetic may round
        # it to the other one; the compression error is the same.
        assert (ours - theirs).square().mean().sqrt() < 0.3 * lost[1]
        assert_close(lost[0], lost[1], rtol=0.05, atol=0)


def test_brightness():
    x = images().clamp(0, 1)
    x[0, :, 0, 0] = 0
    found = FUNCTIONS["brightness"](x, GENERATOR, 0.3)
    for row in range(0, 32, 5):
        hue, saturation, value = colorsys.rgb_to_hsv(*x[0, :, row, row].tolist())
        expected = colorsys.hsv_to_rgb(hue, saturation, min(1, value + 0.3))
        assert_close(found[0, :, row, row], torch.tensor(expected, dtype=torch.float64))
    assert_close(found[0, :, 0, 0], torch.full((3,), 0.3, dtype=torch.float64))


@pytest.mark.parametrize(("radius", "soft"), [(0.3, 0.4), (1, 0.2), (1.5, 0.1), (3, 0.1)])
def test_defocus_blur(radius, soft):
    x = images()
    disk = np.array(
        [[float(i * i + j * j <= radius**2) for i in range(-8, 9)] for j in range(-8, 9)]
    )
    line = np.exp(-0.5 * (np.arange(-1, 2) / soft) ** 2)
    line /= line.sum()
    kernel = ndimage.correlate(disk / disk.sum(), np.outer(line, line), mode="mirror")
    expected = each_channel(x, lambda c: ndimage.correlate(c, kernel, mode="mirror"))
    assert_close(FUNCTIONS["defocus_blur"](x, GENERATOR, radius, soft), expected)


@pytest.mark.parametrize("angle", [-135.0, -45.0, 0.0, 20.0, 45.0])
def test_motion_blur(angle):
    x, radius, sigma = images(1, 28, 2), 6, 2.0
    weights = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(2 * radius + 1)]
    expected = torch.zeros_like(x)
    for row in range(28):
        for column in range(28):
            for i, weight in enumerate(weights):
                down = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
                right = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
                near = x[..., min(max(row + down, 0), 27), min(max(column + right, 0), 27)]
                expected[..., row, column] += weight / sum(weights) * near
    found = sampling.motion_blur(x, torch.full((2,), angle), radius, sigma)
    assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("severity", "end"), [(1, 1.06), (2, 1.11), (3, 1.16), (5, 1.26)])
def test_zoom_blur(severity, end):
    x = images()
    zooms = np.arange(1, end, 0.01)  # as in the original code: rounding may include the end
    total = x + sum(sampling.clipped_zoom(x, float(zoom)) for zoom in zooms)
    arguments = TABLES["cifar"]["zoom_blur"][severity - 1]
    found = FUNCTIONS["zoom_blur"](x, GENERATOR, *arguments)
    assert_close(found, total / (len(zooms) + 1))


@pytest.mark.parametrize("name", ["rotate", "scale", "shear"])
def test_affine_maps(name):
    x = images(1, 28, 8)
    # Black borders, because SciPy and torch interpolate differently across the border.
    x = torch.nn.functional.pad(x[..., 4:-4, 4:-4], (4, 4, 4, 4))
    amount = 0.6
    found = FUNCTIONS[name](x, torch.Generator().manual_seed(0), amount)
    for image, ours in zip(x[:, 0], found[:, 0], strict=True):
        differences = []
        for sign in (-1, 1):
            a = sign * amount
            # SciPy's matrices act on (row, column).
            matrix = {
                "rotate": [[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]],
                "scale": [[1 / amount, 0], [0, 1 / amount]],
                "shear": [[math.cos(a), 0], [-math.sin(a), 1]],
            }[name]
            matrix = np.array(matrix)
            offset = 13.5 - matrix @ [13.5, 13.5]
            theirs = ndimage.affine_transform(image.numpy(), matrix, offset, order=1)
            differences.append(np.abs(ours.numpy() - theirs).max())
        assert min(differences) < 1e-6


def test_elastic_transform_without_displacements_is_affine():
    """Coordinates as pixel values show the map itself."""
    rows, columns = sampling.pixel_grid(torch.zeros(1, 1, 32, 32, dtype=torch.float64))
    x = torch.stack([rows, columns]).expand(20, 2, 32, 32)
    found = FUNCTIONS["elastic_transform"](x, torch.Generator().manual_seed(0), 0, 0, 0.08)
    inner = found[..., 10:22, 10:22]
    second = inner.diff(n=2, dim=-1).abs().max() + inner.diff(n=2, dim=-2).abs().max()
    assert second < 1e-5  # linear in row and column
    moved = (inner - x[..., 10:22, 10:22]).abs()
    assert 0.3 < moved.mean() < 0.08 * 32
    assert moved.max() < 3 * 0.08 * 32


def test_displacements_are_smooth():
    rows, columns = sampling.pixel_grid(torch.zeros(1, 1, 64, 64, dtype=torch.float64))
    x = torch.stack([rows, columns]).expand(20, 2, 64, 64)
    found = FUNCTIONS["elastic_transform"](x, torch.Generator().manual_seed(0), 0.1, 0.04, 0.0)
    field = (found - x)[..., 8:-8, 8:-8]
    # White noise of variance 1/3 has, smoothed, the variance 1/3 / (4 pi sigma^2).
    sigma, strength = 0.04 * 64, 0.1 * 64
    expected = strength**2 / 3 / (4 * math.pi * sigma**2)
    assert field.var().item() == pytest.approx(expected, rel=0.15)


def test_corrupt_agrees_with_the_functions():
    x = (255 * images()).round().to(torch.uint8)
    expected = (FUNCTIONS["contrast"](x.float() / 255, GENERATOR, 0.15) * 255 + 1e-3).floor()
    assert corrupt(x, "contrast", 5).equal(expected.to(torch.uint8))
    grey = (255 * images(1, 28)).round().to(torch.uint8)
    expected = (FUNCTIONS["scale"](grey.float() / 255, GENERATOR, 0.7) * 255).round()
    assert corrupt(grey, "scale", 3).equal(expected.to(torch.uint8))


def test_truncation_keeps_integers():
    """Published sets are truncated to integers; rounding errors must not lower them by one."""
    x = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).tile(1, 3, 2, 2)
    for severity, amount in ((1, 0.05), (5, 0.3)):
        found = corrupt(x, "brightness", severity)
        exact = (x.double() + 255 * amount).clamp_max(255)
        assert (found - exact).max() < 1e-2
        assert (found - exact).min() > -1
    # Exact values are integers here, as 255 x 0.2 = 51 is added.
    found = corrupt(x, "brightness", 4)
    assert found.equal((x.int() + 51).clamp_max(255).to(torch.uint8))
