"""A cheap fingerprint of data: shapes, and a hash of some examples at fixed positions."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tacit._support.trees import leaves_in, tensors_in
from tacit.data.batches import Batches
from tacit.training.checkpoints import preserved_random_state

IN_MEMORY = 64  # number of examples hashed for tensors in memory
LOADED = 8  # number of examples hashed for a Dataset, which may have to read or compute them
SEED = 0  # random augmentations are the same each time the fingerprint is computed


def fingerprint(data: Batches) -> dict[str, Any]:
    """Return the identity of data: shapes, types and a hash of evenly spaced examples.

    If examples of a Dataset differ each time they are loaded, even with equal seeds, only their
    shapes are included; if it can't be indexed, only its length. Random states are preserved; a
    dataset is indexed through a shallow copy, which preserves its attributes.
    """
    if data.memory is not None:
        tensors = [*tensors_in(data.memory.inputs), *tensors_in(data.memory.targets)]
        at = torch.tensor(positions(data.size, IN_MEMORY))
        return {
            "examples": data.size,
            "shapes": [_kind(tensor[:0]) for tensor in tensors],
            "content": digest([tensor[at.to(tensor.device)] for tensor in tensors]),
            "preprocessing": data.preprocessing,
        }
    with preserved_random_state(torch.device("cpu")):
        if data.loader is None:
            return {"examples": data.size, **_of_items(data.dataset, data.size)}
        return {
            "examples": data.size,
            "batch_size": data.loader.batch_size,
            "sampler": _sampler(data.loader),
            **_of_items(data.loader.dataset, data.size, data.loader),
        }


def positions(size: int, count: int) -> list[int]:
    """Return at most `count` evenly spaced positions, the first and the last among them."""
    count = min(size, count)
    return [i * (size - 1) // max(1, count - 1) for i in range(count)]


def digest(tree: Any) -> str:
    """Return a short hash of all tensors, arrays, numbers and strings in nested containers."""
    found = hashlib.sha256()
    for leaf in leaves_in(tree):
        found.update(_kind(leaf).encode())
        if isinstance(leaf, Tensor):
            found.update(_bytes(leaf))
        elif isinstance(leaf, np.ndarray | np.generic) and leaf.dtype != object:
            found.update(leaf.tobytes())
        elif isinstance(leaf, str | bytes | bool | int | float | complex):
            found.update(repr(leaf).encode())
    return found.hexdigest()[:12]


def _bytes(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def _kind(leaf: Any) -> str:
    if isinstance(leaf, Tensor | np.ndarray):
        return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"
    return type(leaf).__name__


def _sampler(loader: DataLoader[Any]) -> str:
    custom = loader.batch_size is None and loader.batch_sampler is not None
    return type(loader.batch_sampler if custom else loader.sampler).__name__


def _of_items(
    dataset: Dataset[Any] | None, size: int, loader: DataLoader[Any] | None = None
) -> dict[str, Any]:
    if isinstance(dataset, IterableDataset):
        return {"shapes": None, "content": None}
    at = positions(size, LOADED)
    try:
        first, second = (_items(dataset, at, loader) for _ in range(2))
    except Exception:  # a map-style dataset may have custom keys, known only to its sampler
        return {"shapes": None, "content": None}
    shapes = sorted({", ".join(_kind(leaf) for leaf in leaves_in(item)) for item in first})
    same = digest(first) == digest(second)
    return {"shapes": shapes, "content": digest(first) if same else None}


def _items(dataset: Any, at: Sequence[int], loader: DataLoader[Any] | None) -> list[Any]:
    """Load examples where training loads them: in a worker process if the loader has workers.

    A dataset may open a file when first indexed, and processes must not share it.
    """
    if loader is not None and loader.num_workers > 0:
        worker: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=None,
            sampler=at,
            num_workers=1,
            collate_fn=_unchanged,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=torch.Generator().manual_seed(SEED),
        )
        return list(worker)
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    own = copy.copy(dataset)
    return [own[i] for i in at]


def _unchanged(item: Any) -> Any:
    return item
