"""Batches of inputs and targets, from whatever users hold their data in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sized
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from tacit._tree import map_tensors
from tacit.pairs import check_pair


class Batch(NamedTuple):
    """Inputs and targets of some examples.

    Args:
        inputs: A tensor, or whatever the dataset gives.
        targets: A tensor.
        weight: What the mean loss is multiplied by, so that the mean over processes is that over
            the whole batch: processes may have one example more or less.
    """

    inputs: Any
    targets: Tensor
    weight: float = 1.0


class Batches:
    """Data as batches, in an order that depends on seed and epoch only.

    Tensors in memory are indexed by whole batches. A DataLoader of the user's own keeps its order
    and batch size; the generators that it may draw its order from are seeded before each pass.

    Args:
        name: What the data are called, for error messages.
        source: A pair of tensors or arrays, a Dataset, or a DataLoader.
        batch_size: Examples in a batch; a DataLoader has its own.
        shuffle: Whether to shuffle; a DataLoader has its own way.
        rank: Which part of each batch to take, of `parts`: for several processes.
        parts: Number of processes; a last batch with fewer examples is left out.
    """

    def __init__(
        self,
        name: str,
        source: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        rank: int = 0,
        parts: int = 1,
    ) -> None:
        self.batch_size, self.shuffle, self.rank, self.parts = batch_size, shuffle, rank, parts
        self.loader: DataLoader[Any] | None = None
        self.pair: tuple[Tensor, Tensor] | None = None
        self.dataset: Dataset[Any] | None = None
        if isinstance(source, tuple | list):
            self.pair = check_pair(name, source)
            _check_finite(name, self.pair)
            self.size = len(self.pair[0])
        elif isinstance(source, DataLoader) and isinstance(source.dataset, Sized):
            if parts > 1:
                raise TypeError(
                    f"{name}: with several processes pass a Dataset or a pair of tensors; each "
                    "process takes its part of them."
                )
            self.loader, self.size = source, len(source.dataset)
        elif isinstance(source, Dataset) and not isinstance(source, IterableDataset):
            self.dataset, self.size = source, len(source)  # type: ignore[arg-type]
        else:
            raise TypeError(
                f"{name}: expected a pair of tensors or arrays, a Dataset or a DataLoader with a "
                f"length, received {type(source).__name__}."
            )
        if not len(self):
            raise ValueError(
                f"{name}: {self.size} examples make no batch; take a smaller batch size."
            )

    def __len__(self) -> int:
        if self.loader is not None:
            return len(self.loader)
        whole, rest = divmod(self.size, self.batch_size)
        return whole * (self.batch_size >= self.parts) + (rest >= self.parts)

    def epoch(self, seed: int, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch.

        Args:
            seed: Of the run.
            epoch: Its number.
            skip: How many batches to leave out at the beginning: what was done before a stop. They
                are passed over at once, so that random states can be put back afterwards.
        """
        # One number for each epoch: the same order whenever and wherever it is asked for.
        number = (seed * 1_000_003 + epoch) % 2**63
        if self.loader is not None:
            return self._loaded(self.loader, number, skip)
        order = torch.arange(self.size)
        if self.shuffle:
            order = torch.randperm(self.size, generator=torch.Generator().manual_seed(number))
        return (self._at(rows) for rows in order.split(self.batch_size)[skip : len(self)])

    def _loaded(self, loader: DataLoader[Any], number: int, skip: int) -> Iterator[Batch]:
        for part in (loader, loader.sampler):
            generator = getattr(part, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(number)
        with torch.random.fork_rng():
            # A sampler draws its order from the global generator when the first batch is asked for.
            torch.manual_seed(number)
            batches = iter(loader)
            deque(islice(batches, skip), maxlen=0)
            first = list(islice(batches, 1 if skip == 0 else 0))
        return (_batch(batch) for batch in chain(first, batches))

    def _at(self, rows: Tensor) -> Batch:
        own = rows[self.rank :: self.parts]
        weight = len(own) * self.parts / len(rows)
        if self.pair is not None:
            return Batch(self.pair[0][own], self.pair[1][own], weight)
        assert self.dataset is not None
        return _batch(default_collate([self.dataset[i] for i in own.tolist()]), weight)


def to_model(batch: Any, like: Tensor) -> Any:
    """Return the tensors of a batch on a model's device; floating ones in its precision.

    Args:
        batch: Inputs.
        like: One of the model's parameters.
    """

    def move(tensor: Tensor) -> Tensor:
        dtype = like.dtype if tensor.is_floating_point() else None
        return tensor.to(like.device, dtype, non_blocking=True)

    return map_tensors(move, batch)


def _batch(batch: Any, weight: float = 1.0) -> Batch:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(
            "data: expected batches of (inputs, targets), received "
            f"{type(batch).__name__} of length {len(batch) if isinstance(batch, Sized) else '?'}."
        )
    return Batch(batch[0], batch[1], weight)


def _check_finite(name: str, pair: tuple[Tensor, Tensor]) -> None:
    for part, tensor in zip(("inputs", "targets"), pair, strict=True):
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"{name}: some {part} are not finite (NaN or infinite).")
