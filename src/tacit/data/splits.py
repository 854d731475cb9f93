"""Fixed splits into training, validation and test sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacit.data.cache import Recipe, load
from tacit.data.images import Images


class Splits(NamedTuple):
    """The three parts of a dataset, in a form that `tacit.fit` and `tacit.evaluate` accept.

    Attributes:
        train: Training set.
        validation: Validation set, for model selection and calibration.
        test: Test set.
    """

    train: Any
    validation: Any
    test: Any


def held_out(size: int, share: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return row indices of a training and a validation set, in an order fixed by the seed.

    Args:
        size: Number of examples.
        share: Fraction of the examples in the validation set.
        seed: Random seed of the order.
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
    """Return an image dataset split into 0.9 and 0.1 of its training set, and its test set.

    The test set stays memory-mapped; the other two are copied in random order.
    """
    tensors = load(recipe, root)
    train, validation = held_out(len(tensors["train_labels"]))
    whole, test = (
        Images(tensors[f"{part}_images"], tensors[f"{part}_labels"], mean, std, class_names)
        for part in ("train", "test")
    )
    return Splits(whole[train], whole[validation], test)
