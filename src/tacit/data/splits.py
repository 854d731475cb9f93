"""Training, validation and test data, cut the same way every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacit.data.cache import Recipe, load
from tacit.data.images import Images


class Splits(NamedTuple):
    """Three parts of a set of data, each as `tacit.fit` and `tacit.evaluate` take it.

    Attributes:
        train: To train on.
        validation: To choose and calibrate by.
        test: To judge by.
    """

    train: Any
    validation: Any
    test: Any


def held_out(size: int, share: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the rows of a training and of a validation set, in random but fixed order.

    Args:
        size: Number of examples.
        share: Of the validation set.
        seed: Of the order.
    """
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    count = round(size * share)
    return order[count:], order[:count]


def image_splits(
    recipe: Recipe,
    root: str | Path | None,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    class_names: tuple[str, ...] | None,
) -> Splits:
    """Return a set of images in three parts, 0.9 and 0.1 of the training set and the test set.

    The test set stays mapped into memory; the others, in their random order, are copied.
    """
    tensors = load(recipe, root)
    train, validation = held_out(len(tensors["train_labels"]))
    whole, test = (
        Images(tensors[f"{part}_images"], tensors[f"{part}_labels"], mean, std, class_names)
        for part in ("train", "test")
    )
    return Splits(whole[train], whole[validation], test)
