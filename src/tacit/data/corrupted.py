"""Corrupted test sets: generated here, or the published files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

import torch

from tacit.data import formats
from tacit.data.archives import members
from tacit.data.cache import Recipe, Tensors, load
from tacit.data.cifar import cifar10, cifar100
from tacit.data.corruptions import CORRUPTIONS, Kind, corrupt
from tacit.data.images import Images
from tacit.data.mnist_sets import mnist
from tacit.data.sources import Url
from tacit.data.splits import Splits
from tacit.data.tiny_imagenet_sets import labelled, tiny_imagenet

Origin: TypeAlias = Literal["made", "files"]


def decode_cifar(paths: Sequence[Path], name: str) -> Tensors:
    """Return a corruption's images at five severities (5, B, 3, 32, 32) and their labels (B,)."""
    images = labels = None
    for member, content in members(paths[0], lambda m: PurePosixPath(m).stem in (name, "labels")):
        if PurePosixPath(member).stem == "labels":
            labels = formats.npy(content).long()
        else:
            images = formats.npy(content)
    if images is None or labels is None:
        raise ValueError(f"{paths[0].name}: no {name}.npy or no labels.npy.")
    images = images.permute(0, 3, 1, 2).reshape(5, -1, 3, 32, 32).contiguous()
    return {"images": images, "labels": labels[: images.shape[1]].clone()}


def decode_mnist(paths: Sequence[Path], name: str) -> Tensors:
    """Return the test images of a corruption, (1, B, 1, 28, 28), and their labels (B,)."""
    found = {}
    for member, content in members(paths[0], lambda m: f"/{name}/test_" in m):
        found[PurePosixPath(member).stem] = formats.npy(content)
    if set(found) != {"test_images", "test_labels"}:
        raise ValueError(f"{paths[0].name}: no test images or no labels of {name}.")
    images = found["test_images"].reshape(1, -1, 1, 28, 28)
    return {"images": images.contiguous(), "labels": found["test_labels"].long()}


def decode_tiny_imagenet(paths: Sequence[Path], name: str) -> Tensors:
    """Return a corruption's images at five severities (5, B, 3, 64, 64) and their labels (B,)."""
    pictures: dict[str, list[torch.Tensor]] = {str(level): [] for level in range(1, 6)}
    classes: dict[str, list[str]] = {level: [] for level in pictures}
    files = dict(members(paths[0], lambda m: f"/{name}/" in m and m.endswith(".JPEG")))
    for file in sorted(files):  # so that each severity has the same images in the same order
        *_, level, label, _ = PurePosixPath(file).parts
        pictures[level].append(formats.picture(files[file]))
        classes[level].append(label)
    if any(classes[level] != classes["1"] for level in classes):
        raise ValueError(f"{paths[0].name}: the severities of {name} have different images.")
    found = labelled(pictures, classes)
    images = torch.stack([found[f"{level}_images"] for level in pictures])
    return {"images": images, "labels": found["1_labels"]}


def _recipes(
    family: str, kind: Kind, megabytes: int, source: Url, decode: Callable[..., Tensors]
) -> dict[str, Recipe]:
    return {
        name: Recipe(
            f"{family}-{name}",
            f"corrupted test set: {name}",
            megabytes,
            ((source, partial(decode, name=name)),),
            archive=family,
        )
        for name in CORRUPTIONS[kind]
    }


# Digests of the archives are from TensorFlow Datasets (url_checksums, sha256) and Zenodo (md5).
MNIST_C = _recipes(
    "mnist_c",
    "mnist",
    247,
    Url(
        "https://zenodo.org/record/3239543/files/",
        (
            (
                "mnist_c.zip",
                "sha256:af9ee8c6a815870c7fdde5af84c7bf8db0bcfa1f41056db83871037fba70e493",
            ),
        ),
    ),
    decode_mnist,
)
CIFAR10_C = _recipes(
    "cifar10_c",
    "cifar",
    2918,
    Url(
        "https://zenodo.org/record/2535967/files/",
        (
            (
                "CIFAR-10-C.tar",
                "sha256:c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7",
            ),
        ),
    ),
    decode_cifar,
)
CIFAR100_C = _recipes(
    "cifar100_c",
    "cifar",
    2918,
    Url(
        "https://zenodo.org/record/3555552/files/",
        (("CIFAR-100-C.tar", "md5:11f0ed0f1191edbf9fa23466ae6021d3"),),
    ),
    decode_cifar,
)
TINY_IMAGENET_C = _recipes(
    "tiny_imagenet_c",
    "tiny_imagenet",
    1795,
    Url(
        "https://zenodo.org/record/8206060/files/",
        (("Tiny-ImageNet-C.tar", "md5:f9c9a9dbdc11469f0b850190f7ad8be1"),),
    ),
    decode_tiny_imagenet,
)


def mnist_c(
    name: str,
    severity: int | None = None,
    *,
    origin: Origin = "made",
    root: str | Path | None = None,
    seed: int = 0,
) -> Images:
    """Return MNIST's test set under one of 15 corruptions.

    Args:
        name: Name of the corruption, one of `tacit.data.CORRUPTIONS["mnist"]`.
        severity: From 1 to 5; by default the published severity, the only one in the files.
        origin: "made": generated from the test set by `corrupt`; "files": as published.
        root: Data folder; by default $TACIT_DATA or the user's cache.
        seed: Random seed of generated corruptions.

    Raises:
        DataMissingError: If it is not on this machine and can't be fetched.
        ValueError: If there is no such corruption or severity.

    Examples:
        >>> import tacit
        >>> len(tacit.data.CORRUPTIONS["mnist"])
        15
        >>> tacit.data.mnist_c("fog")  # doctest: +SKIP
        Images(10000 of 1 x 28 x 28)
    """
    return _corrupted("mnist", MNIST_C, mnist, name, severity, origin, root, seed)


def cifar10_c(
    name: str,
    severity: int = 5,
    *,
    origin: Origin = "made",
    root: str | Path | None = None,
    seed: int = 0,
) -> Images:
    """Return CIFAR-10's test set under one of 15 corruptions.

    Args:
        name: Name of the corruption, one of `tacit.data.CORRUPTIONS["cifar"]`.
        severity: From 1 to 5.
        origin: "made": generated from the test set by `corrupt`; "files": as published.
        root: Data folder; by default $TACIT_DATA or the user's cache.
        seed: Random seed of generated corruptions.

    Raises:
        DataMissingError: If it is not on this machine and can't be fetched.
        ValueError: If there is no such corruption or severity.

    Examples:
        >>> import tacit
        >>> len(tacit.data.CORRUPTIONS["cifar"])
        15
        >>> tacit.data.cifar10_c("fog", severity=3)  # doctest: +SKIP
        Images(10000 of 3 x 32 x 32)
    """
    return _corrupted("cifar", CIFAR10_C, cifar10, name, severity, origin, root, seed)


def cifar100_c(
    name: str,
    severity: int = 5,
    *,
    origin: Origin = "made",
    root: str | Path | None = None,
    seed: int = 0,
) -> Images:
    """Return CIFAR-100's test set under one of 15 corruptions.

    Args:
        name: Name of the corruption, one of `tacit.data.CORRUPTIONS["cifar"]`.
        severity: From 1 to 5.
        origin: "made": generated from the test set by `corrupt`; "files": as published.
        root: Data folder; by default $TACIT_DATA or the user's cache.
        seed: Random seed of generated corruptions.

    Raises:
        DataMissingError: If it is not on this machine and can't be fetched.
        ValueError: If there is no such corruption or severity.

    Examples:
        >>> import tacit
        >>> fog = tacit.data.cifar100_c("fog", severity=3)  # doctest: +SKIP
    """
    return _corrupted("cifar", CIFAR100_C, cifar100, name, severity, origin, root, seed)


def tiny_imagenet_c(
    name: str,
    severity: int = 5,
    *,
    origin: Origin = "made",
    root: str | Path | None = None,
    seed: int = 0,
) -> Images:
    """Return TinyImageNet's test set under one of 15 corruptions.

    Args:
        name: Name of the corruption, one of `tacit.data.CORRUPTIONS["tiny_imagenet"]`.
        severity: From 1 to 5.
        origin: "made": generated from the test set by `corrupt`; "files": as published.
        root: Data folder; by default $TACIT_DATA or the user's cache.
        seed: Random seed of generated corruptions.

    Raises:
        DataMissingError: If it is not on this machine and can't be fetched.
        ValueError: If there is no such corruption or severity.

    Examples:
        >>> import tacit
        >>> fog = tacit.data.tiny_imagenet_c("fog", severity=3)  # doctest: +SKIP
    """
    return _corrupted(
        "tiny_imagenet", TINY_IMAGENET_C, tiny_imagenet, name, severity, origin, root, seed
    )


def _corrupted(
    kind: Kind,
    recipes: dict[str, Recipe],
    clean: Callable[[str | Path | None], Splits],
    name: str,
    severity: int | None,
    origin: Origin,
    root: str | Path | None,
    seed: int,
) -> Images:
    if name not in recipes:
        raise ValueError(f"name: expected one of {', '.join(recipes)}; received {name!r}.")
    if origin not in ("made", "files"):
        raise ValueError(f"origin: expected made or files, received {origin!r}.")
    test: Images = clean(root).test
    if origin == "made":
        return replace(test, pixels=corrupt(test.pixels, name, severity, kind=kind, seed=seed))
    tensors = load(recipes[name], root)
    if len(tensors["images"]) == 1:
        if severity is not None:
            raise ValueError("severity: the files have only one severity; omit the argument.")
        severity = 1
    if severity not in (1, 2, 3, 4, 5):
        raise ValueError(f"severity: expected 1 to 5, received {severity!r}.")
    return replace(test, pixels=tensors["images"][severity - 1], targets=tensors["labels"])
