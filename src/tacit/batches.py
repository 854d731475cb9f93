"""Batches of inputs and targets, from whatever users hold their data in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from tacit._tree import map_tensors, tensors_in
from tacit.data.images import Images
from tacit.pairs import as_tensor, check_lengths


class Batch(NamedTuple):
    """Inputs and targets of some examples.

    Args:
        inputs: A tensor, or several in a dict or tuple: what the network's `forward` takes.
        targets: A tensor; None where only predictions are wanted.
        weight: What the mean loss is multiplied by, so that the mean over processes is that over
            the whole batch: processes may have one example more or less.
        prepare: Applied to the inputs when they are on the model's device.
    """

    inputs: Any
    targets: Any = None
    weight: float = 1.0
    prepare: Callable[[Tensor], Tensor] | None = None

    def call(self, model: Callable[..., Any], like: Tensor, **keywords: Any) -> Any:
        """Return the model's output for the inputs: a dict as keywords, a tuple as arguments.

        Args:
            model: What to call.
            like: One of the model's parameters: inputs go to its device, and those with a decimal
                point get its precision.
            **keywords: For the model, beside the inputs.
        """
        inputs = map_tensors(partial(_moved, like=like), self.inputs)
        if self.prepare is not None:
            inputs = _moved(self.prepare(inputs), like)
        if isinstance(inputs, Mapping):
            return model(**inputs, **keywords)
        if isinstance(inputs, tuple | list):
            return model(*inputs, **keywords)
        return model(inputs, **keywords)


class Batches:
    """Data as batches, in an order that depends on seed and epoch only.

    Tensors in memory are indexed by whole batches. A DataLoader of the user's own keeps its order
    and batch size; to train, the generators that it may draw its order from are seeded before each
    pass.

    A batch is inputs and targets, or a dict of inputs with the targets under "labels". Inputs of
    several tensors are a dict or a tuple.

    Args:
        name: What the data are called, for error messages.
        source: A pair of inputs and targets in tensors or arrays, `tacit.data.Images`, a Dataset,
            or a DataLoader.
        batch_size: Examples in a batch; a DataLoader has its own.
        shuffle: Whether to shuffle; a DataLoader has its own way.
        rank: Which part of each batch to take, of `parts`: for several processes.
        parts: Number of processes; a last batch with fewer examples is left out.
        targets: Whether there must be targets; without them, what comes first in a batch are the
            inputs and the rest is passed over.
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
        targets: bool = True,
    ) -> None:
        self.name, self.batch_size, self.shuffle = name, batch_size, shuffle
        self.rank, self.parts, self.targets = rank, parts, targets
        self.loader: DataLoader[Any] | None = None
        self.memory: Batch | None = None
        self.dataset: Dataset[Any] | None = None
        if isinstance(source, Images):
            self.memory = Batch(source.pixels, source.targets, prepare=source.normalised)
            self.size = len(source)
        elif isinstance(source, DataLoader) and isinstance(source.dataset, Sized):
            if parts > 1:
                raise TypeError(
                    f"{name}: with several processes pass a Dataset or a pair of tensors; each "
                    "process takes its part of them."
                )
            self.loader, self.size = source, len(source.dataset)
        elif isinstance(source, Dataset) and not isinstance(source, IterableDataset):
            if not isinstance(source, Sized):
                raise TypeError(f"{name}: expected a Dataset with a length (__len__).")
            self.dataset, self.size = source, len(source)
        else:
            self.memory = _in_memory(name, source, targets)
            self.size = len(tensors_in(self.memory.inputs)[0])
        if not len(self):
            raise ValueError(
                f"{name}: {self.size} examples make no batch; take a smaller batch size."
                if self.size
                else f"{name}: there are no examples."
            )

    def __len__(self) -> int:
        if self.loader is not None:
            return len(self.loader)
        whole, rest = divmod(self.size, self.batch_size)
        return whole * (self.batch_size >= self.parts) + (rest >= self.parts)

    def epoch(self, seed: int = 0, epoch: int = 0, skip: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch.

        Args:
            seed: Of the run.
            epoch: Its number.
            skip: How many batches to leave out at the beginning: what was done before a stop. They
                are passed over at once, so that random states can be put back afterwards.
        """
        # One number for each epoch: the same order whenever and wherever it is asked for.
        number = (seed * 1_000_003 + epoch) % 2**63
        if self.loader is not None and not self.shuffle:
            return (self._batch(batch) for batch in self.loader)  # the user's, as it comes
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
        return (self._batch(batch) for batch in chain(first, batches))

    def _at(self, rows: Tensor) -> Batch:
        own = rows[self.rank :: self.parts]
        weight = len(own) * self.parts / len(rows)
        if self.memory is not None:
            whole = self.memory
            # Rows in a run are a view, not a copy.
            at: Any = (
                own if self.shuffle or self.parts > 1 else slice(int(own[0]), int(own[-1]) + 1)
            )
            targets = None if whole.targets is None else whole.targets[at]
            return Batch(map_tensors(lambda t: t[at], whole.inputs), targets, weight, whole.prepare)
        assert self.dataset is not None
        return self._batch(default_collate([self.dataset[i] for i in own.tolist()]), weight)

    def _batch(self, batch: Any, weight: float = 1.0) -> Batch:
        if isinstance(batch, Mapping) and ("labels" in batch or not self.targets):
            inputs = {key: value for key, value in batch.items() if key != "labels"}
            return Batch(inputs, batch.get("labels"), weight)
        if isinstance(batch, tuple | list) and (len(batch) == 2 or not self.targets):
            return Batch(batch[0], batch[1] if len(batch) == 2 else None, weight)
        if not self.targets:
            return Batch(batch, None, weight)
        received = f" of length {len(batch)}" if isinstance(batch, Sized) else ""
        raise TypeError(
            f"{self.name}: expected batches of (inputs, targets), or dicts with targets under "
            f"'labels'; received {type(batch).__name__}{received}."
        )


def _run(rows: Tensor) -> Any:
    """Return equidistant rows as a slice: it gives a view of tensors, not a copy."""
    step = int(rows[1] - rows[0]) if len(rows) > 1 else 1
    return slice(int(rows[0]), int(rows[-1]) + 1, step)


def _moved(tensor: Tensor, like: Tensor) -> Tensor:
    dtype = like.dtype if tensor.is_floating_point() else None
    return tensor.to(like.device, dtype, non_blocking=True)


def _in_memory(name: str, source: Any, targets: bool) -> Batch:
    """Return the whole data as one batch of tensors."""
    pair = isinstance(source, tuple | list) and len(source) == 2
    if not pair and (targets or not isinstance(source, Tensor | np.ndarray | Mapping)):
        alone = "" if targets else "a tensor or array, a dict of them, or "
        parts = f" of length {len(source)}" if isinstance(source, tuple | list) else ""
        raise TypeError(
            f"{name}: expected {alone}a pair of tensors or arrays, inputs and targets; a Dataset "
            f"or a DataLoader with a length; received {type(source).__name__}{parts}."
        )
    inputs, wanted = source if pair else (source, None)
    if not targets:
        wanted = None
    if isinstance(inputs, Mapping):
        inputs = {key: as_tensor(name, value) for key, value in inputs.items()}
    elif isinstance(inputs, tuple):
        inputs = tuple(as_tensor(name, value) for value in inputs)
    else:
        inputs = as_tensor(name, inputs)
    batch = Batch(inputs, None if wanted is None else as_tensor(name, wanted))
    check_lengths(name, tensors_in(batch.inputs), batch.targets)
    for part, tensors in (("inputs", tensors_in(inputs)), ("targets", tensors_in(batch.targets))):
        if not all(t.isfinite().all() for t in tensors if t.is_floating_point()):
            raise ValueError(f"{name}: some {part} are not finite (NaN or infinite).")
    return batch
