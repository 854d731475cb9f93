"""Each augmentation against a loop over images, rows and columns."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch.testing import assert_close

import tacit
from tacit.data import Augmentation
from tacit.data.augmentation import _boxes, moved, recoloured, resized


def some_images(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def test_shifts_and_mirror_images():
    pixels = some_images(40, 3, 6, 5)
    generator = torch.Generator().manual_seed(1)
    down = torch.randint(-5, 6, (40,), generator=generator)
    right = torch.randint(-4, 5, (40,), generator=generator)
    mirrored = torch.rand(40, generator=generator) < 0.5
    found = moved(pixels, down, right, mirrored)
    assert found.is_contiguous()
    for image, dy, dx, flip, result in zip(pixels, down, right, mirrored, found, strict=True):
        padded = np.pad(image.numpy(), ((0, 0), (5, 5), (4, 4)), mode="reflect")
        expected = padded[:, 5 - dy : 11 - dy, 4 - dx : 9 - dx]
        assert np.array_equal(result.numpy(), expected[:, :, ::-1] if flip else expected)


def reference_colours(image, brightness, contrast, saturation):
    """Return brightness, contrast, saturation of an image (C, H, W) in float64, unrounded."""

    def grey(x):
        return 0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2] if len(x) == 3 else x.mean(0)

    x = (image.double() * brightness).clamp(0, 255)
    mean = grey(x).mean()
    x = (mean + contrast * (x - mean)).clamp(0, 255)
    if len(x) == 3:
        x = (grey(x) + saturation * (x - grey(x))).clamp(0, 255)
    return x


@pytest.mark.parametrize("channels", [1, 3])
def test_colours(channels):
    pixels = some_images(20, channels, 4, 5)
    factors = 2 * torch.rand(3, 20, generator=torch.Generator().manual_seed(1))
    found = recoloured(pixels, factors)
    assert found.dtype == torch.uint8
    for i, image in enumerate(pixels):
        expected = reference_colours(image, *factors[:, i].double())
        assert_close(found[i].double(), expected, rtol=0, atol=0.501)


@pytest.mark.parametrize(
    ("place", "kind"),
    [(0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color)],
)
@pytest.mark.parametrize("factor", [0.6, 1.4])
def test_colours_agree_with_pillow(place, kind, factor):
    pixels = some_images(1, 3, 8, 8)
    factors = torch.ones(3, 1)
    factors[place] = factor
    picture = Image.fromarray(pixels[0].permute(1, 2, 0).numpy())
    expected = torch.from_numpy(np.array(kind(picture).enhance(factor))).permute(2, 0, 1)
    found = recoloured(pixels, factors)[0]
    assert (found.int() - expected.int()).abs().max() <= 1  # Pillow rounds the luminance


def bilinear(image, y, x):
    """Return the value of an image (C, H, W) at a point; edges are continued."""
    height, width = image.shape[1:]
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = math.floor(y), math.floor(x)
    below, beside = min(top + 1, height - 1), min(left + 1, width - 1)
    v, u = y - top, x - left
    return (1 - v) * ((1 - u) * image[:, top, left] + u * image[:, top, beside]) + v * (
        (1 - u) * image[:, below, left] + u * image[:, below, beside]
    )


def test_resized_crops():
    pixels = some_images(5, 2, 6, 4)
    uniform = torch.rand(4, 5, generator=torch.Generator().manual_seed(1))
    tall, wide = 0.3 + 0.7 * uniform[0], 0.3 + 0.7 * uniform[1]
    boxes = torch.stack([uniform[2] * (1 - tall), uniform[3] * (1 - wide), tall, wide])
    found = resized(pixels, boxes)
    for k, image in enumerate(pixels.double()):
        top, left, height, width = boxes[:, k].double().tolist()
        for i in range(6):
            for j in range(4):
                y = 6 * (top + height * (i + 0.5) / 6) - 0.5
                x = 4 * (left + width * (j + 0.5) / 4) - 0.5
                expected = bilinear(image, y, x)
                assert_close(found[k, :, i, j].double(), expected, rtol=0, atol=0.501)


def test_the_whole_image_as_a_box_changes_nothing():
    pixels = some_images(3, 3, 7, 5)
    boxes = torch.tensor([0.0, 0.0, 1.0, 1.0])[:, None].expand(4, 3)
    assert torch.equal(resized(pixels, boxes), pixels)


class TestDraws:
    def test_every_shift_and_both_sides_are_equally_likely(self):
        image = torch.arange(49, dtype=torch.uint8).reshape(1, 1, 7, 7).expand(9000, 1, 7, 7)
        found = Augmentation(crop=1, colour=0)(image)
        kinds, counts = found.flatten(1).unique(dim=0, return_counts=True)
        assert len(kinds) == 18  # 3 x 3 shifts, mirrored or not
        # Four standard errors of a binomial count with probability 1/18.
        assert (counts - 500).abs().max() < 4 * math.sqrt(9000 * (1 / 18) * (17 / 18))

    def test_without_flips_or_shifts(self):
        image = torch.arange(49, dtype=torch.uint8).reshape(1, 1, 7, 7).expand(500, 1, 7, 7)
        shifted = Augmentation(flip=False, crop=1, colour=0)(image)
        assert len(shifted.flatten(1).unique(dim=0)) == 9
        mirrored = Augmentation(crop=0, colour=0)(image)
        assert len(mirrored.flatten(1).unique(dim=0)) == 2

    def test_strengths_bound_the_factors(self):
        grey = torch.full((2000, 3, 1, 1), 100, dtype=torch.uint8)
        found = Augmentation(flip=False, crop=0, colour=(0.2, 0, 0))(grey)
        assert (found.min(), found.max()) == (80, 120)
        assert torch.equal(Augmentation(flip=False, crop=0, colour=(0, 1, 1))(grey), grey)

    def test_areas_and_aspect_ratios(self):
        top, left, tall, wide = _boxes(torch.rand(4, 10_000), 0.25)
        assert (tall * wide).min() >= 0.2499
        assert (wide / tall).max() <= 4 / 3 + 1e-5
        assert (wide / tall).min() >= 3 / 4 - 1e-5
        assert top.min() >= 0
        assert (left + wide).max() <= 1 + 1e-6
        # Unclipped, the area is uniform on [0.25, 1]; clipping at the edges only reduces it.
        assert (tall * wide).mean() < 0.625
        assert (tall * wide).mean() > 0.55

    def test_the_global_generator_or_a_given_one(self):
        pixels, augment = some_images(30, 3, 9, 9), Augmentation(area=0.5)
        torch.manual_seed(3)
        first = augment(pixels)
        assert not torch.equal(augment(pixels), first)
        torch.manual_seed(3)
        assert torch.equal(augment(pixels), first)
        given = augment(pixels, generator=torch.Generator().manual_seed(3))
        assert torch.equal(given, first)

    def test_the_input_is_left_untouched(self):
        pixels = some_images(5, 3, 9, 9)
        before = pixels.clone()
        Augmentation(area=0.5)(pixels)
        assert torch.equal(pixels, before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flip": 0.5}, r"flip\): expected True or False, received 0.5"),
        ({"crop": -1}, r"crop\): expected an integer of at least 1, received -1"),
        ({"crop": 1.5}, r"crop\): expected an integer"),
        ({"colour": 1.5}, r"colour\): expected a number from 0 to 1, received 1.5"),
        ({"colour": (0.1, 0.2)}, r"colour\): expected a strength, or three for brightness"),
        ({"colour": "red"}, r"colour\): expected a strength, or three"),
        ({"area": 0.0}, r"area\): expected a number above 0"),
        ({"area": 2.0}, r"area\): expected a number from 0 to 1"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Augmentation(**settings)


def test_impossible_images():
    with pytest.raises(ValueError, match=r"dtype uint8, received \(2, 3, 9, 9\) and torch.float32"):
        Augmentation()(torch.zeros(2, 3, 9, 9))
    with pytest.raises(ValueError, match="less than height and width, 4 x 9; received 4"):
        Augmentation()(some_images(2, 3, 4, 9))


class TestImages:
    def test_an_augmentation_of_your_own(self):
        images = tacit.data.Images(
            some_images(6, 1, 4, 4), torch.arange(6), augment=lambda pixels: 255 - pixels
        )
        assert_close(images.augmented(images.pixels), 1 - images.normalised())
        assert_close(images[0][0], images.normalised()[0])

    @pytest.mark.parametrize(
        ("augment", "message"),
        [
            (lambda pixels: pixels.float(), "received torch.float32 of shape"),
            (lambda pixels: pixels[:1], r"expected 6 images of 1 channels .* \(1, 1, 4, 4\)"),
            (lambda pixels: None, "received NoneType"),
        ],
    )
    def test_what_it_may_return(self, augment, message):
        images = tacit.data.Images(some_images(6, 1, 4, 4), torch.arange(6), augment=augment)
        with pytest.raises(ValueError, match=message):
            images.augmented(images.pixels)

    def test_names_follow_their_images(self):
        pixels, names = some_images(4, 1, 2, 2), ("a", "b", "c", "d")
        images = tacit.data.Images(pixels, torch.arange(4), names=names)
        assert images[1:3].names == ("b", "c")
        assert images[[3, 0]].names == ("d", "a")
        assert images[torch.tensor([True, False, False, True])].names == ("a", "d")
        assert images[torch.tensor([2])].names == ("c",)
        with pytest.raises(ValueError, match=r"names\): expected 4 names.* received 1"):
            tacit.data.Images(pixels, torch.arange(4), names=("a",))
        with pytest.raises(TypeError, match=r"augment\): expected a function"):
            tacit.data.Images(pixels, torch.arange(4), augment=0.5)
