"""Which image files there are, and their classes: in a folder per class, or listed in a CSV."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from tacit.data.decoding import listed, readable_suffixes
from tacit.data.table_files import open_table

PARTS = {
    "train": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test",
}  # fmt: skip
"""Names of split folders and of entries in a column `split`, and the part that they mean."""


class ImageFile(NamedTuple):
    """An image file and its class.

    Attributes:
        name: Path relative to the dataset's folder, with forward slashes.
        path: Path of the file.
        label: Name of its class.
        part: "train", "validation" or "test".
    """

    name: str
    path: Path
    label: str
    part: str


def files_of(path: Path) -> list[ImageFile]:
    """Return the files of a folder or of a CSV.

    Raises:
        FileNotFoundError: If there is nothing at the path.
        ValueError: If files can't be assigned to classes.
    """
    if path.is_dir():
        found = _in_folder(path)
    elif path.is_file() and path.suffix.lower() == ".csv":
        found = _in_table(path)
    elif path.exists():
        raise ValueError(f"image_folder: expected a folder or a CSV file, received {path}.")
    else:
        raise FileNotFoundError(f"image_folder: there is no folder or CSV file at {path}.")
    _check_classes(path, found)
    return found


def split_files(
    files: Sequence[ImageFile], validation: float, test: float, seed: int
) -> dict[str, list[ImageFile]]:
    """Return the files of each part, in a fixed pseudo-random order.

    Parts that are missing are taken from the training files, class by class. The order is that of
    a hash of seed and name: it is the same on all platforms, and new files leave most of the others
    in their part.

    Args:
        files: All files.
        validation: Fraction of each class for validation, unless there are validation files.
        test: Fraction of each class for testing, unless there are test files.
        seed: Seed of the order.
    """
    given = {file.part for file in files}
    shares = {
        part: 0.0 if part in given else share
        for part, share in (("validation", validation), ("test", test))
    }
    parts: dict[str, list[ImageFile]] = {"train": [], "validation": [], "test": []}
    classes = defaultdict(list)
    for file in sorted(files, key=lambda file: _hash(seed, file.name)):
        if file.part == "train":
            classes[file.label].append(file)
        else:
            parts[file.part].append(file)
    for members in classes.values():
        start, last = 0, len(members) - 1  # the last one is for training
        for part, share in shares.items():
            count = max(1, round(share * len(members))) if share else 0
            end = min(last, start + count)
            parts[part] += members[start:end]
            start = end
        parts["train"] += members[start:]
    for part, share in shares.items():
        if share and not parts[part]:
            raise ValueError(
                f"image_folder: no class has enough images for {part}. Pass {part}=0 for none."
            )
    return {
        part: sorted(members, key=lambda file: _hash(seed, file.name))
        for part, members in parts.items()
    }


def _hash(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed} {name}".encode(errors="surrogateescape")).digest()


def _in_folder(root: Path) -> list[ImageFile]:
    folders = _folders(root)
    if not _has_splits(root, [folder.name.lower() for folder in folders]):
        return _by_class(root, root, "train")
    _refuse_loose(root)
    return [
        file for folder in folders for file in _by_class(root, folder, PARTS[folder.name.lower()])
    ]


def _has_splits(root: Path, names: Sequence[str]) -> bool:
    """Return whether folders are splits rather than classes; `train` may also be a class."""
    known = [name for name in names if name in PARTS]
    others = [name for name in names if name not in PARTS]
    if not known or (others and len(known) == 1):
        return False
    expected = f"image_folder: expected in {root} either a folder for each class, or train, "
    if others:
        raise ValueError(
            f"{expected}validation and test alone; received {listed(known)} beside "
            f"{listed(others)}."
        )
    if len({PARTS[name] for name in known}) < len(known) or "train" not in known:
        raise ValueError(f"{expected}validation (or val) and test; received {listed(known)}.")
    return True


def _by_class(root: Path, folder: Path, part: str) -> list[ImageFile]:
    _refuse_loose(folder)
    found, empty = [], []
    for own in _folders(folder):
        images = list(images_in(own))
        found += [
            ImageFile(path.relative_to(root).as_posix(), path, own.name, part) for path in images
        ]
        if not images:
            empty.append(own.name)
    if empty and part == "train":
        raise ValueError(
            f"image_folder: no images in these folders of {folder}: {listed(empty)}. Expected "
            "files with the suffix of an image format (.jpg, .png, ...) in each; remove folders "
            "that are no classes."
        )
    if not found:
        raise ValueError(f"image_folder: no images in {folder}; expected a folder for each class.")
    return found


def _refuse_loose(folder: Path) -> None:
    """Raise ValueError if images lie beside the folders of classes or splits."""
    loose = [path.name for path in sorted(folder.iterdir()) if path.is_file() and _is_image(path)]
    if loose:
        raise ValueError(
            f"image_folder: expected a folder for each class in {folder}; received images directly "
            f"in it: {listed(loose)}. Move them to the folders of their classes, or list them in a "
            "CSV with the columns file and label."
        )


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def images_in(folder: Path) -> Iterator[Path]:
    """Yield the images in a folder and its subfolders; hidden ones are left out."""
    for base, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (
            path for path in (Path(base, name) for name in sorted(names)) if _is_image(path)
        )


def _is_image(path: Path) -> bool:
    return not path.name.startswith(".") and path.suffix.lower() in readable_suffixes()


def _raise(error: OSError) -> NoReturn:
    raise error


def rows_of(path: Path, *columns: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV of images, by lower-case names of columns, with their lines.

    Args:
        path: The CSV.
        *columns: Columns in which every row has a value, in any case.

    Raises:
        ValueError: If a column or a value is missing.
    """
    table = open_table(path)
    names = {name.lower(): name for name in table.names}
    if not {*columns} <= {*names}:
        needed = " and ".join(columns)
        raise ValueError(
            f"{path}: expected the column{'s' if len(columns) > 1 else ''} {needed}, with files "
            f"relative to it, in its first line; received {listed(table.names)}."
        )
    for chunk in table.chunks():
        for i, line in enumerate(chunk.lines):
            row = {name: chunk.columns[given][i] for name, given in names.items()}
            for column in columns:
                if not row[column]:
                    raise ValueError(f"line {line} of {path} has no {column}.")
            yield line, row


def _in_table(table: Path) -> list[ImageFile]:
    """Return the files listed in a CSV with the columns file, label and possibly split."""
    found = [_from_row(table, line, row) for line, row in rows_of(table, "file", "label")]
    twice = [name for name, count in Counter(file.path for file in found).items() if count > 1]
    if twice:
        raise ValueError(
            f"image_folder: {table} lists files more than once: {listed(map(str, twice))}."
        )
    if not found:
        raise ValueError(f"image_folder: {table} lists no files.")
    return found


def _from_row(table: Path, line: int, row: dict[str, str]) -> ImageFile:
    part = row.get("split", "train").lower()
    if part not in PARTS:
        raise ValueError(
            f"image_folder: line {line} of {table}: expected train, validation (or val) or test in "
            f"the column split, received {row.get('split')!r}."
        )
    name = Path(row["file"])
    return ImageFile(name.as_posix(), table.parent / name, row["label"], PARTS[part])


def _check_classes(path: Path, files: Sequence[ImageFile]) -> None:
    """Raise ValueError unless there are at least two classes, each with training images."""
    known = {file.label for file in files if file.part == "train"}
    unknown = sorted({file.label for file in files} - known)
    if unknown:
        raise ValueError(
            f"image_folder: {path} has classes without training images: {listed(unknown)}."
        )
    if len(known) > 1:
        return
    only = next(iter(known))
    inner = _folders(path / only) if (path / only).is_dir() else []
    hint = f" Its folders are {listed(p.name for p in inner)}: pass {path / only}?" if inner else ""
    raise ValueError(f"image_folder: expected at least two classes in {path}, found {only}.{hint}")
