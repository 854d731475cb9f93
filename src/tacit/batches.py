"""Batches of inputs and targets, from whatever users hold their data in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from tacit._tree import map_tensors
from tacit.pairs import check_pair


class Batches:
    """Data as batches of (inputs, targets), in an order that depends on seed and epoch only.

    Tensors in memory are indexed by whole batches. A DataLoader of the user's own keeps its order
    and batch size; torch's global generator is seeded before each pass, so that a shuffled one
    gives the same order again.

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
        self.loader: Iterable[Any] | None = None
        self.pair: tuple[Tensor, Tensor] | None = None
        self.dataset: Dataset[Any] | None = None
        if isinstance(source, tuple | list):
            self.pair = check_pair(name, source)
            self.size = len(self.pair[0])
        elif isinstance(source, DataLoader):
            if parts > 1:
                raise TypeError(
                    f"{name}: with several processes pass a Dataset or a pair of tensors; fit "
                    "gives each process its part of them."
                )
            self.loader = source
            self.size = len(source.dataset) if isinstance(source.dataset, Sized) else 0
        elif isinstance(source, Dataset) and not isinstance(source, IterableDataset):
            self.dataset = source
            if not isinstance(source, Sized) or not len(source):
                raise ValueError(f"{name}: expected a dataset with a length above 0.")
            self.size = len(source)
        else:
            raise TypeError(
                f"{name}: expected a pair of tensors or arrays, a Dataset or a DataLoader, "
                f"received {type(source).__name__}."
            )

    def __len__(self) -> int:
        if self.loader is not None:
            return len(self.loader)  # type: ignore[arg-type]
        whole, rest = divmod(self.size, self.batch_size)
        return whole + (rest >= self.parts)

    def epoch(self, seed: int, epoch: int, skip: int = 0) -> Iterator[tuple[Any, Any]]:
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
            return self._loaded(number, skip)
        order = torch.arange(self.size)
        if self.shuffle:
            order = torch.randperm(self.size, generator=torch.Generator().manual_seed(number))
        batches = order.split(self.batch_size)[skip : len(self)]
        return (self._at(rows[self.rank :: self.parts]) for rows in batches)

    def _loaded(self, number: int, skip: int) -> Iterator[tuple[Any, Any]]:
        assert self.loader is not None
        with torch.random.fork_rng():
            # A sampler draws its order from the global generator when the first batch is asked for.
            torch.manual_seed(number)
            batches = iter(self.loader)
            first = list(islice(batches, max(1, skip)))
        return (_two(batch) for batch in chain(first[skip:], batches))

    def _at(self, rows: Tensor) -> tuple[Any, Any]:
        if self.pair is not None:
            return self.pair[0][rows], self.pair[1][rows]
        assert self.dataset is not None
        return _two(default_collate([self.dataset[i] for i in rows.tolist()]))


def to_device(batch: Any, device: torch.device) -> Any:
    """Return the tensors of a batch on a device."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)


def _two(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(
            "data: expected batches of (inputs, targets), received "
            f"{type(batch).__name__} of length {len(batch) if isinstance(batch, Sized) else '?'}."
        )
    return batch[0], batch[1]
