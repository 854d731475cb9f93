import math
from functools import cache

import pytest
import torch
from sklearn.datasets import load_sample_images
from torch.testing import assert_close

from tacit.data import digits
from tacit.data.corruptions import CORRUPTIONS, FUNCTIONS, corrupt
from tacit.data.corruptions.severities import MNIST_PUBLISHED, TABLES

# With the published parameters, the PSNR of these doesn't fall at every severity.
NOT_GRADED_BY_PSNR = {
    ("cifar", "glass_blur"), ("cifar", "motion_blur"), ("cifar", "frost"),
    ("cifar", "elastic_transform"), ("tiny_imagenet", "glass_blur"), ("tiny_imagenet", "frost"),
    ("tiny_imagenet", "elastic_transform"), ("mnist", "spatter"),
}  # fmt: skip
EVERY = [(kind, name) for kind, names in CORRUPTIONS.items() for name in names]
SHAPES = {"cifar": (3, 32, 32), "tiny_imagenet": (3, 64, 64), "mnist": (1, 28, 28)}


@cache
def photographs(size):
    """Return tiles of the photographs that ship with scikit-learn, (B, 3, size, size)."""
    pieces = []
    for image in load_sample_images().images:
        x = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].double()
        small = torch.nn.functional.avg_pool2d(x, 3 if size == 32 else 2)
        cut = small.unfold(2, size, size).unfold(3, size, size)
        pieces.append(cut.permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, size, size))
    return torch.cat(pieces).round().to(torch.uint8)


@cache
def handwriting():
    """Return scikit-learn's digits, enlarged to 28 x 28."""
    x = digits().train[0][:200].reshape(-1, 1, 8, 8)
    large = torch.nn.functional.interpolate(x, (20, 20), mode="bicubic").clamp(0, 1)
    return torch.nn.functional.pad(255 * large, (4, 4, 4, 4)).round().to(torch.uint8)


def pictures(kind, count=40):
    every = handwriting() if kind == "mnist" else photographs(SHAPES[kind][-1])
    return every[torch.arange(count) * 7 % len(every)]


def psnr(a, b):
    error = ((a.double() - b.double()) / 255).square().mean((1, 2, 3)).clamp_min(1e-10)
    return (-10 * error.log10()).mean().item()


def test_there_are_fifteen_of_each():
    assert {kind: len(names) for kind, names in CORRUPTIONS.items()} == {
        "cifar": 15, "tiny_imagenet": 15, "mnist": 15,
    }  # fmt: skip
    assert CORRUPTIONS["cifar"] == CORRUPTIONS["tiny_imagenet"]
    assert set(MNIST_PUBLISHED) == set(CORRUPTIONS["mnist"])
    assert set(FUNCTIONS) == {name for _, name in EVERY}
    assert all(len(rows) == 5 for table in TABLES.values() for rows in table.values())


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_every_corruption(kind, name):
    clean = pictures(kind)
    before = clean.clone()
    found = [corrupt(clean, name, severity, kind=kind) for severity in range(1, 6)]
    for images in found:
        assert images.shape == clean.shape
        assert images.dtype == torch.uint8
        assert not images.equal(clean)
    assert clean.equal(before)
    ratios = [psnr(images, clean) for images in found]
    if (kind, name) not in NOT_GRADED_BY_PSNR:
        assert ratios == sorted(ratios, reverse=True), ratios
    if name != "elastic_transform":
        assert ratios[4] < ratios[0]


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_seeds(kind, name):
    clean = pictures(kind, count=6)
    state = torch.get_rng_state()
    first = corrupt(clean, name, 4, kind=kind, seed=1)
    assert torch.get_rng_state().equal(state)
    torch.rand(3)
    assert corrupt(clean, name, 4, kind=kind, seed=1).equal(first)
    calm = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
    calm |= {"scale", "stripe", "canny_edges"}
    assert corrupt(clean, name, 4, kind=kind, seed=2).equal(first) == (name in calm)


@pytest.mark.parametrize("name", ["gaussian_noise", "glass_blur", "frost"])
def test_many_images_are_done_in_chunks(name, monkeypatch):
    monkeypatch.setattr("tacit.data.corruptions.CHUNK", 4)
    clean = pictures("cifar", count=10)
    assert len(corrupt(clean, name, 1)) == 10
    first = corrupt(clean[:4], name, 1)
    assert corrupt(clean, name, 1)[:4].equal(first)


def test_each_image_of_a_batch_has_its_own_draws():
    clean = pictures("cifar", count=1).expand(8, -1, -1, -1)
    for name in ("motion_blur", "snow", "frost", "fog", "elastic_transform", "shot_noise"):
        assert len(corrupt(clean, name, 5).flatten(1).unique(dim=0)) == 8, name


def test_default_severity_and_kind():
    grey, small, large = (pictures(kind, 4) for kind in ("mnist", "cifar", "tiny_imagenet"))
    assert corrupt(grey, "shear").equal(corrupt(grey, "shear", 2, kind="mnist"))
    assert corrupt(small, "fog").equal(corrupt(small, "fog", 5, kind="cifar"))
    assert corrupt(large, "fog").equal(corrupt(large, "fog", 5, kind="tiny_imagenet"))


def test_larger_images_and_empty_batches():
    large = torch.randint(0, 256, (2, 3, 96, 96), dtype=torch.uint8)
    for name in CORRUPTIONS["cifar"]:
        assert corrupt(large, name, 2).shape == large.shape, name
        assert corrupt(large[:0], name, 2).shape == (0, 3, 96, 96)


def test_other_default_dtypes():
    torch.set_default_dtype(torch.float64)
    try:
        found = [corrupt(pictures("cifar", 2), name) for name in CORRUPTIONS["cifar"]]
        found += [corrupt(pictures("mnist", 2), name) for name in CORRUPTIONS["mnist"]]
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(found) == 30


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((pictures("cifar"), "fog", 3.0), "severity: expected 1 to 5, received 3.0"),
        ((torch.zeros(5, dtype=torch.uint8), "fog"), "expected images"),
        ((pictures("cifar"), "rain"), "for cifar, expected one of gaussian_noise, .*'rain'"),
        ((pictures("cifar"), "fog", 0), "severity: expected 1 to 5, received 0"),
        ((pictures("cifar").float(), "fog"), "of uint8, received .* of torch.float32"),
        ((torch.zeros(2, 3, 32, 48, dtype=torch.uint8), "fog"), "expected square images"),
        ((torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "fog"), "of at least 28 x 28"),
    ],
)
def test_bad_input(arguments, match):
    with pytest.raises(ValueError, match=match):
        corrupt(*arguments)
    with pytest.raises(ValueError, match="kind: expected cifar, tiny_imagenet, mnist"):
        corrupt(pictures("cifar"), "fog", kind="imagenet")
    with pytest.raises(ValueError, match="MNIST-C are for grey images"):
        corrupt(pictures("cifar"), "canny_edges", kind="mnist")


class TestNoise:
    """Moments of the noise on a grey image, with bounds from their standard errors."""

    def values(self, name, level, *arguments):
        x = torch.full((200, 3, 32, 32), level, dtype=torch.float64)
        found = FUNCTIONS[name](x, torch.Generator().manual_seed(0), *arguments)
        return found.flatten()

    def test_gaussian(self):
        values = self.values("gaussian_noise", 0.5, 0.1)
        n = len(values)
        assert abs(values.mean() - 0.5) < 4 * 0.1 / math.sqrt(n)
        assert abs(values.var() - 0.01) < 4 * 0.01 * math.sqrt(2 / n)

    def test_shot(self):
        values = self.values("shot_noise", 0.5, 50)
        variance = 0.5 / 50  # of a Poisson count of 25, in units of 50
        n = len(values)
        assert abs(values.mean() - 0.5) < 4 * math.sqrt(variance / n)
        assert abs(values.var() - variance) < 4 * variance * math.sqrt(2.1 / n)

    def test_impulse(self):
        values = self.values("impulse_noise", 0.5, 0.1)
        n = len(values)
        error = 4 * math.sqrt(0.05 * 0.95 / n)
        assert abs((values == 0).double().mean() - 0.05) < error
        assert abs((values == 1).double().mean() - 0.05) < error
        assert set(values.unique().tolist()) == {0.0, 0.5, 1.0}


class TestGlass:
    def test_grey_pixels_are_swapped(self):
        x = (pictures("mnist", 5).double() / 255).contiguous()
        x = (x * 200 + torch.arange(28)).round() / 255
        found = FUNCTIONS["glass_blur"](x, torch.Generator().manual_seed(0), 0.0, 2, 2)
        assert not found.equal(x)
        assert_close(found.flatten(1).sort().values, x.flatten(1).sort().values, atol=1e-2, rtol=0)

    def test_colors_come_from_a_nearby_pixel(self):
        x = torch.arange(32 * 32, dtype=torch.float64).reshape(1, 1, 32, 32) / 2000
        x = (x.expand(3, 3, 32, 32) * 255).floor() / 255 + 0.001
        found = FUNCTIONS["glass_blur"](x, torch.Generator().manual_seed(0), 0.0, 1, 1)
        assert found.shape == x.shape
        # Pixels are taken from above and from the left, by at most one step at a time.
        assert (found - x).abs().max() < 34 * 3 / 2000

    def test_pixels_near_the_border_are_kept(self):
        x = pictures("cifar", 2).double() / 255
        found = FUNCTIONS["glass_blur"](x, torch.Generator().manual_seed(0), 0.0, 1, 1)
        kept = (x * 255).floor() / 255
        assert_close(found[..., :2, :], kept[..., :2, :])
        assert_close(found[..., :, :2], kept[..., :, :2])


class TestWeather:
    def test_fog_keeps_the_brightest_pixel_within_range(self):
        x = pictures("cifar").double() / 255
        found = FUNCTIONS["fog"](x, torch.Generator().manual_seed(0), 1.0, 2.0, 32)
        assert (found <= x.amax((1, 2, 3), keepdim=True) + 1e-12).all()
        assert (found >= 0).all()

    def test_clouds_fill_the_range(self):
        from tacit.data.corruptions.weather import plasma

        clouds = plasma(50, 64, 2.0, torch.zeros(()), torch.Generator().manual_seed(0))
        assert clouds.shape == (50, 64, 64)
        assert (clouds.amin((1, 2)) == 0).all()
        assert (clouds.amax((1, 2)) == 1).all()
        # The larger the decay, the smoother.
        rough = [
            plasma(50, 64, decay, torch.zeros(()), torch.Generator().manual_seed(0))
            .diff(dim=1).abs().mean().item()
            for decay in (1.4, 2.0, 3.0)
        ]  # fmt: skip
        assert rough == sorted(rough, reverse=True)

    def test_frost_has_the_mean_color_of_the_photographs(self):
        from tacit.data.corruptions.weather import FROST_COLORS

        black = torch.zeros(3000, 3, 32, 32)
        found = FUNCTIONS["frost"](black, torch.Generator().manual_seed(0), 1.0, 1.0)
        expected = torch.tensor(FROST_COLORS).mean(0)
        assert_close(found.mean((0, 2, 3)), expected, atol=0.02, rtol=0)

    def test_snow_falls_only_where_there_are_flakes(self):
        black = torch.zeros(50, 3, 32, 32)
        found = FUNCTIONS["snow"](
            black, torch.Generator().manual_seed(0), 0.1, 0.2, 1, 0.6, 8, 3, 1.0
        )
        # The layer is added twice, once rotated by 180 degrees.
        assert_close(found, found.rot90(2, (-2, -1)))
        assert 0.3 < (found == 0).double().mean() < 0.95


class TestStrokes:
    def test_translate(self):
        x = pictures("mnist", 40).double() / 255
        found = FUNCTIONS["translate"](x, torch.Generator().manual_seed(0), 3)
        moves = {(a, b) for a in (-3, 3) for b in (-3, 3)}
        seen = set()
        for image, moved in zip(x, found, strict=True):
            same = [
                (a, b)
                for a, b in moves
                if (moved - image.roll((a, b), (1, 2)))[:, 3:-3, 3:-3].abs().max() < 1e-6
            ]
            assert same
            seen.add(same[0])
        assert len(seen) > 1

    def test_stripe(self):
        x = pictures("mnist", 2)
        found = corrupt(x, "stripe")
        assert found[..., :7].equal(255 - x[..., :7])
        assert found[..., 7:21].equal(x[..., 7:21])
        assert found[..., 21:].equal(255 - x[..., 21:])

    def test_dotted_lines_have_gaps(self):
        black = torch.zeros(30, 1, 28, 28, dtype=torch.uint8)
        columns = (corrupt(black, "dotted_line") > 0).any(2)[:, 0]  # (B, 28)
        gaps = torch.arange(28) // 2 % 2 == 0
        assert not columns[:, gaps].any()
        assert columns[:, ~gaps].double().mean() > 0.9

    def test_a_zigzag_crosses_the_image(self):
        black = torch.zeros(30, 1, 28, 28, dtype=torch.uint8)
        found = corrupt(black, "zigzag")
        columns = (found > 0).any(2)[:, 0].double().mean(0)
        assert columns[3:23].min() > 0.9
        assert columns[:2].max() == 0

    def test_edges_of_a_square(self):
        x = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
        x[..., 8:20, 8:20] = 255
        found = corrupt(x, "canny_edges")
        assert set(found.unique().tolist()) == {0, 255}
        on = found[0, 0] > 0
        assert not on[10:18, 10:18].any()
        assert not on[:6].any()
        for line in (on[7:9, 10:18], on[19:21, 10:18]):
            assert line.any(0).all()

    def test_a_constant_image_has_no_edges(self):
        x = torch.full((1, 1, 28, 28), 128, dtype=torch.uint8)
        assert corrupt(x, "canny_edges").max() == 0

    def test_canny_follows_weak_edges_from_strong_ones(self):
        ramp = torch.linspace(0.11, 0.5, 28)  # contrast falls along the edge
        x = torch.zeros(1, 1, 28, 28)
        x[..., 14:, :] = ramp
        alone = torch.zeros(1, 1, 28, 28)
        alone[..., 14:, :] = 0.04
        edges, none = (
            corrupt((255 * image).round().to(torch.uint8), "canny_edges") for image in (x, alone)
        )
        assert (edges > 0).any(2)[0, 0, 2:-2].all()
        assert none.max() == 0
