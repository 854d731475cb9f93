"""Fixed splits into training, validation and test sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data.cache import Recipe, load
from tacit.data.images import Images


class Splits(NamedTuple):
    """The three parts of a dataset, in a form that `tacit.fit` and `tacit.evaluate` accept.

    Attributes:
        train: Training set.
        validation: Validation set, for model selection and calibration.
        test: Test set.

    Examples:
        >>> import tacit
        >>> splits = tacit.data.digits()
        >>> [len(targets) for _, targets in splits]
        [900, 100, 797]
        >>> train, validation, test = splits  # for tacit.fit(model, train, validation)
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


def stratified(
    groups: NDArray[np.int64], fraction: float, least: int, seed: int
) -> NDArray[np.bool_]:
    """Return which rows to hold out: about the same fraction of each group.

    The last row of a group is never held out.

    Args:
        groups: Group of each row, (B,), from 0.
        fraction: Fraction of the rows.
        least: Rows to hold out at least, as long as these are at most a quarter.
        seed: Random seed.
    """
    count = max(round(fraction * len(groups)), min(least, len(groups) // 4), 1)
    order = np.random.default_rng(seed).permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    sizes = np.bincount(groups)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its group
    size = np.repeat(sizes, sizes)
    # The share of its group that is held out with it: groups take turns in proportion to size.
    share = np.where(rank < size - 1, (rank + 0.5) / size, np.inf)
    chosen = np.argsort(share, kind="stable")[:count]
    held_out = np.zeros(len(groups), dtype=bool)
    held_out[order[chosen[np.isfinite(share[chosen])]]] = True
    return held_out


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
