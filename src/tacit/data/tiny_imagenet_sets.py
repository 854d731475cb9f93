"""TinyImageNet: 200 classes of ImageNet at 64 x 64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import torch

from tacit.data import formats
from tacit.data.archives import members
from tacit.data.cache import Recipe, Tensors
from tacit.data.sources import Url
from tacit.data.splits import Splits, image_splits

MEAN, STD = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)


def decode(paths: Sequence[Path]) -> Tensors:
    """Return images (B, 3, 64, 64) and labels (B,), indices into the sorted class names.

    The test set is the published validation set, since the published test set has no labels.
    """
    pictures: dict[str, list[torch.Tensor]] = {"train": [], "test": []}
    classes: dict[str, list[str]] = {"train": [], "test": []}
    truth, files = {}, []
    for name, content in members(paths[0], lambda name: "/train/" in name or "/val/" in name):
        place = PurePosixPath(name)
        if place.name == "val_annotations.txt":
            lines = (line.split("\t") for line in content.decode().splitlines())
            truth = {line[0]: line[1] for line in lines}
        elif place.suffix == ".JPEG":
            part = "train" if "train" in place.parts else "test"
            pictures[part].append(formats.picture(content))
            if part == "train":
                classes[part].append(place.name.partition("_")[0])
            else:
                files.append(place.name)
    classes["test"] = [truth[file] for file in files]
    return labelled(pictures, classes)


def labelled(pictures: dict[str, list[torch.Tensor]], classes: dict[str, list[str]]) -> Tensors:
    """Return stacked images and their labels, indices into the sorted class names."""
    names = sorted({name for part in classes.values() for name in part})
    number = {name: i for i, name in enumerate(names)}
    found = {}
    for part, images in pictures.items():
        if not images:
            raise ValueError(f"TinyImageNet: the archive has no {part} images.")
        found[f"{part}_images"] = torch.stack(images)
        found[f"{part}_labels"] = torch.tensor([number[name] for name in classes[part]])
    return found


TINY_IMAGENET = Recipe(
    "tiny_imagenet",
    "color images of 200 classes of ImageNet, 100,000 + 10,000 of 64 x 64",
    248,
    (
        (
            Url(
                "http://cs231n.stanford.edu/",
                (("tiny-imagenet-200.zip", "md5:90528d7ca1a48142e341f4ef8d21d0de"),),
            ),
            decode,
        ),
    ),
)


def tiny_imagenet(root: str | Path | None = None) -> Splits:
    """Return TinyImageNet: 90,000 training, 10,000 validation and 10,000 test images.

    Args:
        root: Data folder; by default $TACIT_DATA or the user's cache.

    Raises:
        DataMissingError: If it is not on this machine and can't be fetched.

    Examples:
        >>> import tacit
        >>> train, validation, test = tacit.data.tiny_imagenet()  # doctest: +SKIP
        >>> net = tacit.models.ResNet18(classes=200)
    """
    return image_splits(TINY_IMAGENET, root, MEAN, STD, None)
