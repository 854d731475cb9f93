"""The real datasets: run by `make test-data`, which fetches missing ones."""

import json
from pathlib import Path

import pytest
import torch

import tacit
from benchmarks.corruptions import IMAGENET, statistics
from tacit.data import cache, catalog
from tacit.data.corruptions import FUNCTIONS

RESULTS = Path(__file__).parents[2] / "results" / "corruptions" / "results.json"

pytestmark = pytest.mark.data


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "quickdraw", "uci"])
def test_checksums(name):
    recipe = catalog.CATALOG[name]
    cache.fetch(recipe)
    assert recipe.sha256 is not None
    cache.verify(recipe)


@pytest.mark.parametrize(
    ("load", "counts", "mean", "std"),
    [
        (tacit.data.mnist, (54_000, 6_000, 10_000), [0.1307], [0.3081]),
        (tacit.data.fashion_mnist, (54_000, 6_000, 10_000), [0.2860], [0.3530]),
        (
            tacit.data.cifar10,
            (45_000, 5_000, 10_000),
            [0.4914, 0.4822, 0.4465],
            [0.2470, 0.2435, 0.2616],
        ),
    ],
)
def test_counts_and_means(load, counts, mean, std):
    splits = load()
    assert tuple(map(len, splits)) == counts
    pixels = torch.cat([splits.train.pixels, splits.validation.pixels]).double() / 255
    torch.testing.assert_close(
        pixels.mean((0, 2, 3)), torch.tensor(mean).double(), atol=6e-5, rtol=0
    )
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.tensor(std).double(), atol=6e-5, rtol=0)
    labels = torch.cat([splits.train.targets, splits.validation.targets])
    assert labels.unique().tolist() == list(range(10))
    assert splits.test.targets.bincount().min() > 800
    whitened = splits.train.normalised(splits.train.pixels[:5000])
    assert abs(whitened.mean().item()) < 0.05


def test_known_labels():
    # The first digits of MNIST's test set, and the first images of CIFAR-10's.
    assert tacit.data.mnist().test.targets[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    test = tacit.data.cifar10().test
    assert [test.class_names[i] for i in test.targets[:4]] == ["cat", "ship", "ship", "airplane"]


def test_drawings():
    found = tacit.data.quickdraw()
    assert len(found) == 34_500
    assert found.targets.bincount().unique().tolist() == [100]


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("activity", 8192, 21), ("airfoil", 1503, 5), ("aquatic_toxicity", 546, 8),
        ("concrete", 1030, 8), ("fish_toxicity", 908, 6), ("laser", 993, 4),
        ("power_plant", 9568, 4), ("protein", 45_730, 9), ("wine_red", 1599, 11),
        ("wine_white", 4898, 11), ("yacht", 308, 6),
    ],
)  # fmt: skip
def test_tables(name, rows, columns):
    splits = tacit.data.uci(name, standardise=False)
    assert sum(len(x) for x, _ in splits) == rows
    assert splits.train[0].shape[1] == columns
    assert splits.train[1].isfinite().all()


@pytest.mark.parametrize("kind", ["cifar", "mnist"])
def test_corrupted_sets_are_harder(kind):
    """Each corruption changes the images, more at the highest severity than at the lowest.

    The exception is elastic transforms, whose published parameters don't all grow (see the docs).
    """
    clean = (tacit.data.cifar10() if kind == "cifar" else tacit.data.mnist()).test.pixels[:500]
    for name in tacit.data.CORRUPTIONS[kind]:
        noise = []
        for severity in (1, 5):
            found = tacit.data.corrupt(clean, name, severity, kind=kind)
            noise.append((found.double() - clean.double()).square().mean().item())
        assert noise[0] > 0
        if name != "elastic_transform":
            assert noise[1] > noise[0], name


@pytest.mark.parametrize("name", list(IMAGENET))
def test_against_another_implementation(name):
    """With the parameters of imagecorruptions, statistics are close to its saved results."""
    saved = json.loads(RESULTS.read_text())["reference"][name]
    clean = tacit.data.cifar10().test.pixels[:300]
    for i, (arguments, both) in enumerate(zip(IMAGENET[name], saved, strict=True)):
        generator = torch.Generator().manual_seed(100 + i)
        made = FUNCTIONS[name](clean.float() / 255, generator, *arguments).clamp(0, 1)
        ours, theirs = statistics((made * 255 + 1e-3).floor(), clean), both["theirs"]
        # It crops enlarged snow from a corner, the published CIFAR sets from the centre.
        loose = 3 if name == "snow" else 1
        assert ours["psnr"] == pytest.approx(theirs["psnr"], abs=0.5 * loose)
        assert ours["mean"] == pytest.approx(theirs["mean"], abs=0.02 * loose)
        assert ours["variance"] == pytest.approx(theirs["variance"], rel=0.12 * loose)
