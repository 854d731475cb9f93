"""Images of your own, in a folder for each class."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path

import torch
from torch import Tensor

from tacit._support import checks
from tacit.data.cache import data_root
from tacit.data.decoding import default_workers, listed
from tacit.data.image_cache import Decoded, Decoding, decoded, describe
from tacit.data.image_files import ImageFile, files_of, split_files
from tacit.data.images import Images
from tacit.data.splits import Splits


def image_folder(
    path: str | Path,
    size: int | tuple[int, int] = 64,
    *,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    channels: int = 3,
    skip_broken: bool = False,
    augment: Callable[[Tensor], Tensor] | None = None,
    workers: int | None = None,
    cache: bool | str | Path = True,
) -> Splits:
    """Return the images of a folder as training, validation and test set.

    `path` holds a folder for each class, `path/cat/1.jpg`, with files at any depth; or folders
    `train`, `validation` (or `val`) and `test`, each with a folder for each class; or it is a CSV
    with the columns file, label and possibly split, whose files are relative to it. Classes are
    sorted by name. Hidden files, and files without the suffix of an image format, are ignored.

    Images are turned upright as their EXIF orientation says, resized until they just cover `size`,
    and cropped to their centre. They are decoded once and from then on memory-mapped, as long as
    files, splits, size and channels remain the same. Mean and standard deviation of each channel
    over the training images normalise all three sets. `Images.names` has the files.

    Args:
        path: Folder or CSV.
        size: Height and width of the images, one number or two.
        validation: Fraction of each class in the validation set, unless there is one already. Each
            class that has enough images has at least one in every set. 0 for no set: None.
        test: Fraction of each class in the test set, likewise.
        seed: Seed of the splits, which depend only on it and on the names of the files.
        channels: 3 for colour, 1 for grey.
        skip_broken: Whether to leave out files that can't be read, with a warning that names them.
        augment: Applied to training batches; see `tacit.data.Images`.
        workers: Number of threads that decode; by default the number of processors, at most 16.
        cache: Folder of the cache; True for $TACIT_DATA or the user's cache, False for none: images
            are decoded into memory.

    Raises:
        FileNotFoundError: If there is nothing at `path`.
        ValueError: If files can't be assigned to classes, or can't be read; the message names them.
        ModuleNotFoundError: If Pillow is not installed.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for i in range(40):
        ...     file = folder / ("dark" if i % 2 else "light") / f"{i}.png"
        ...     file.parent.mkdir(exist_ok=True)
        ...     Image.new("RGB", (50, 40), (200 - 100 * (i % 2), 90, 5 * i)).save(file)
        >>> train, validation, test = image_folder(folder, size=32, cache=False)
        >>> train, len(validation), len(test), train.class_names
        (Images(32 of 3 x 32 x 32), 4, 4, ('dark', 'light'))
    """
    height, width = _size(size)
    if channels not in (1, 3):
        raise ValueError(f"channels: expected 3 for colour or 1 for grey, received {channels!r}.")
    _check_shares(validation, test)
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise TypeError(f"seed: expected an integer, received {seed!r}.")
    if augment is not None and not callable(augment):
        raise TypeError(
            "augment: expected a function of a batch of images, for instance "
            f"tacit.data.Augmentation(); received {augment!r}."
        )
    _check_pillow()
    parts = split_files(files_of(Path(path).expanduser()), validation, test, int(seed))
    files = [file for members in parts.values() for file in members]
    count = default_workers() if workers is None else checks.positive_integer("workers", workers)
    task = Decoding(files, len(parts["train"]), (channels, height, width), count, skip_broken)
    found = decoded(task, _cache_folder(cache))
    if found.failures:
        warnings.warn(
            f"image_folder: skipped {len(found.failures)} of {len(files)} files, which can't be "
            f"read: {describe(files, found.failures)}.",
            stacklevel=2,
        )
    return _splits(_intact(parts, {files[row] for row in found.failures}), found, augment)


def _intact(
    parts: dict[str, list[ImageFile]], broken: set[ImageFile]
) -> dict[str, list[ImageFile]]:
    """Return the files of each part without the broken ones."""
    left = {part: [f for f in files if f not in broken] for part, files in parts.items()}
    emptied = [part for part, files in parts.items() if files and not left[part]]
    unseen = {f.label for f in parts["train"]} - {f.label for f in left["train"]}
    if emptied or unseen:
        what = f"the {emptied[0]} set" if emptied else f"these classes: {listed(sorted(unseen))}"
        raise ValueError(f"image_folder: no images can be read of {what}.")
    return left


def _splits(
    parts: dict[str, list[ImageFile]], found: Decoded, augment: Callable[[Tensor], Tensor] | None
) -> Splits:
    classes = sorted({file.label for file in parts["train"]})
    number = {name: i for i, name in enumerate(classes)}
    sets: dict[str, Images | None] = {}
    start = 0
    for part, files in parts.items():
        end = start + len(files)
        images = Images(
            found.pixels[start:end],  # a view of the memory map
            torch.tensor([number[file.label] for file in files], dtype=torch.long),
            found.mean,
            found.std,
            tuple(classes),
            tuple(file.name for file in files),
            augment if part == "train" else None,
        )
        sets[part], start = images if files else None, end
    return Splits(**sets)


def _size(size: int | tuple[int, int]) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, Integral) else size
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise TypeError(f"size: expected an integer, or height and width; received {size!r}.")
    height, width = (checks.positive_integer("size", number) for number in pair)
    return height, width


def _check_shares(validation: float, test: float) -> None:
    total = checks.probability("validation", validation) + checks.probability("test", test)
    if total >= 1:
        raise ValueError(
            "validation, test: expected fractions with a sum below 1, which leave images for "
            f"training; received {validation} and {test}."
        )


def _check_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "image_folder: Pillow is needed to read images: pip install 'tacit-torch[data]'",
            name="PIL",
        ) from None


def _cache_folder(cache: bool | str | Path) -> Path | None:
    if cache is False:
        return None
    return data_root(None if cache is True else cache) / "image_folders"
