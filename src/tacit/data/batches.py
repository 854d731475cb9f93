"""Batches of inputs and targets from tensors, arrays, `Images`, Datasets and DataLoaders."""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from tacit._support import checks
from tacit._support.trees import map_tensors, tensors_in
from tacit.data.decoding import listed
from tacit.data.images import Images

# Torch's errors for a layer of real numbers that is given integers; the first type is the given
# one. Those of indices and of layers that differ in precision are others.
INTEGERS = re.compile(
    r"(same dtype, but got:?|expected scalar type \w+ but found|^Input type) \(?(torch\.(cuda\.)?)?"
    r"(long|int|short|(un)?signed char|char|byte|bool)",
    re.IGNORECASE,
)


class Batch(NamedTuple):
    """Inputs and targets of a batch of examples.

    Args:
        inputs: A tensor, or a dict or tuple of tensors, as the network's `forward` takes them.
        targets: A tensor; None if only predictions are needed.
        weight: Factor of the mean loss that makes the mean over processes the mean over the whole
            batch, since the number of examples may differ by one between processes.
        prepare: Applied to the inputs once they are on the model's device.
    """

    inputs: Any
    targets: Any = None
    weight: float = 1.0
    prepare: Callable[[Tensor], Tensor] | None = None

    def call(self, model: Callable[..., Any], like: Tensor, **keywords: Any) -> Any:
        """Return the model's output; a dict of inputs is passed as keywords, a tuple as arguments.

        Args:
            model: The model or function to call.
            like: One of the model's parameters: inputs are moved to its device, and floating-point
                inputs are converted to its dtype.
            **keywords: Further keyword arguments of the model.

        Raises:
            ValueError: If a tensor of inputs has the wrong number of columns, or integers where the
                network takes real numbers.
        """
        inputs = map_tensors(partial(_moved, like=like), self.inputs)
        if self.prepare is not None:
            inputs = _moved(self.prepare(inputs), like)
        if isinstance(inputs, Mapping):
            return model(**inputs, **keywords)
        if isinstance(inputs, tuple | list):
            return model(*inputs, **keywords)
        try:
            return model(inputs, **keywords)
        except RuntimeError as error:
            problem = _misfit(inputs, str(error))
            if problem is None:
                raise
            raise ValueError(problem) from error


class Batches:
    """Data in batches, in an order that depends only on seed and epoch.

    Tensors in memory are indexed by whole batches. If a single batch holds all examples and inputs
    are several tensors, their order is kept: one may relate examples to each other by position,
    like the adjacency matrix of a graph. A DataLoader keeps its own order and batch size;
    in training, the generators it may draw its order from are seeded before each epoch.

    A batch is a pair of inputs and targets, or a dict of inputs with the targets under "labels".
    Multiple input tensors are a dict or a tuple.

    Args:
        name: Name of the data in error messages.
        source: A pair of inputs and targets in tensors or arrays, `tacit.data.Images`, a Dataset,
            or a DataLoader.
        batch_size: Examples per batch; a DataLoader has its own.
        shuffle: Whether to shuffle, and to augment `Images`, for training. A DataLoader keeps its
            order, and its generators are seeded.
        rank: Index of this process, which takes every `parts`-th example of each batch.
        parts: Number of processes; a last batch with fewer examples than processes is dropped.
        passes: Passes over the data in an epoch; a DataLoader makes one.
        targets: Whether targets are required. If not, the first element of a batch is the inputs
            and the rest is ignored.
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
        passes: int = 1,
        targets: bool = True,
    ) -> None:
        self.name, self.shuffle = name, shuffle
        self.batch_size = checks.positive_integer("batch_size", batch_size)
        self.rank, self.parts, self.passes, self.targets = rank, parts, passes, targets
        self.loader: DataLoader[Any] | None = None
        self.memory: Batch | None = None
        self.dataset: Dataset[Any] | None = None
        self.preprocessing: dict[str, Any] | None = None
        self.augment: Callable[[Tensor], Tensor] | None = None
        if isinstance(source, Images):
            self.preprocessing = source.preprocessing
            self.augment = source.augment if shuffle else None
            prepare = source.augmented if shuffle else source.normalised
            self.memory = Batch(source.pixels, source.targets, prepare=prepare)
            self.size = len(source)
        elif isinstance(source, DataLoader) and isinstance(source.dataset, Sized):
            if parts > 1:
                raise TypeError(
                    f"{name}: with several processes, expected a Dataset or a pair of tensors, of "
                    "which each process takes its part; received a DataLoader."
                )
            if shuffle and isinstance(source.dataset, Images) and source.dataset.augment:
                raise ValueError(
                    f"{name}: a DataLoader doesn't augment Images; pass the Images themselves."
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
                f"{name}: {self.size} examples make no batch; change the batch size, or use fewer "
                "processes."
                if self.size
                else f"{name}: there are no examples."
            )

    def __len__(self) -> int:
        if self.loader is not None:
            return len(self.loader)
        return self.passes * self._batches_per_pass

    @property
    def _batches_per_pass(self) -> int:
        whole, rest = divmod(self.size, self.batch_size)
        return whole * (self.batch_size >= self.parts) + (rest >= self.parts)

    def epoch(self, seed: int = 0, epoch: int = 0, skip: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch.

        Args:
            seed: Random seed of the run.
            epoch: Index of the epoch.
            skip: Number of batches to skip, those done before a run was stopped. They are skipped
                during this call, so that random states can be restored after it.
        """
        # One seed per epoch, so that its order doesn't depend on earlier epochs or the process.
        number = (seed * 1_000_003 + epoch) % 2**63
        if self.loader is not None and not self.shuffle:
            return (self._batch(batch) for batch in self.loader)  # in the loader's own order
        if self.loader is not None:
            return self._loaded(self.loader, number, skip)
        generator = torch.Generator().manual_seed(number)
        shuffled = self.shuffle and not self._related
        first, skipped = divmod(skip, self._batches_per_pass)
        orders = (
            torch.randperm(self.size, generator=generator) if shuffled else torch.arange(self.size)
            for _ in range(self.passes)
        )
        rows = (order.split(self.batch_size)[: self._batches_per_pass] for order in orders)
        left = chain.from_iterable(islice(rows, first, None))
        return (self._at(batch) for batch in islice(left, skipped, None))

    @property
    def _related(self) -> bool:
        """Whether inputs may relate examples by position, because one batch holds them all."""
        whole = self.memory is not None and self.parts == 1 and self.batch_size >= self.size
        return whole and len(tensors_in(self.memory.inputs if self.memory else ())) > 1

    def _loaded(self, loader: DataLoader[Any], number: int, skip: int) -> Iterator[Batch]:
        for part in (loader, loader.sampler):
            generator = getattr(part, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(number)
        with torch.random.fork_rng():
            # A sampler draws its order from the global generator when the first batch is requested.
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
            # Indexing by a slice gives a view, not a copy.
            at: Any = (
                own if self.shuffle or self.parts > 1 else slice(int(own[0]), int(own[-1]) + 1)
            )
            targets = None if whole.targets is None else whole.targets[at]
            return Batch(map_tensors(lambda t: t[at], whole.inputs), targets, weight, whole.prepare)
        assert self.dataset is not None
        return self._batch(default_collate([self.dataset[i] for i in own.tolist()]), weight)

    def _batch(self, batch: Any, weight: float = 1.0) -> Batch:
        return as_batch(self.name, batch, targets=self.targets)._replace(weight=weight)


def as_batch(name: str, batch: Any, *, targets: bool = True) -> Batch:
    """Return the inputs and targets of a batch of a DataLoader.

    Args:
        name: Name of the data in the error message.
        batch: A pair of inputs and targets, or a dict of inputs with the targets under "labels".
        targets: Whether targets are required. If not, the first element of a tuple is the inputs
            and the rest is ignored.

    Raises:
        TypeError: If the batch is neither.
    """
    if isinstance(batch, Mapping) and ("labels" in batch or not targets):
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        return Batch(inputs, batch.get("labels"))
    if isinstance(batch, tuple | list) and (len(batch) == 2 or not targets):
        return Batch(batch[0], batch[1] if len(batch) == 2 else None)
    if not targets:
        return Batch(batch)
    received = f" of length {len(batch)}" if isinstance(batch, Sized) else ""
    raise TypeError(
        f"{name}: expected batches of (inputs, targets), or dicts with targets under "
        f"'labels'; received {type(batch).__name__}{received}."
    )


def _misfit(inputs: object, message: str) -> str | None:
    """Return what is wrong with inputs, None if torch's message says nothing about that."""
    if not isinstance(inputs, Tensor):
        return None
    if not inputs.is_floating_point() and INTEGERS.search(message):
        kind = str(inputs.dtype).removeprefix("torch.")
        return (
            f"inputs: the network takes real numbers, received {kind}. Convert them, for instance "
            "with inputs.float()."
        )
    sizes = re.search(r"shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)", message)
    if sizes and inputs.ndim == 2 and int(sizes[1]) == inputs.shape[1]:
        return (
            f"inputs: the network doesn't take the shape {tuple(inputs.shape)}; a layer expected "
            f"{sizes[2]} columns, received {sizes[1]}."
        )
    return None


def _moved(tensor: Tensor, like: Tensor) -> Tensor:
    dtype = like.dtype if tensor.is_floating_point() else None
    return tensor.to(like.device, dtype, non_blocking=True)


def _in_memory(name: str, source: Any, targets: bool) -> Batch:
    """Return all data as one batch of tensors."""
    pair = isinstance(source, tuple | list) and len(source) == 2
    table = hasattr(source[0] if pair else source, "to_numpy")
    if not pair and (targets or not (table or isinstance(source, Tensor | np.ndarray | Mapping))):
        alone = "" if targets else "a tensor or array, a dict of them, or "
        parts = f" of length {len(source)}" if isinstance(source, tuple | list) else ""
        raise TypeError(
            f"{name}: expected {alone}a pair of tensors or arrays, inputs and targets; a Dataset "
            f"or a DataLoader with a length; received {type(source).__name__}{parts}."
            + (" Separate inputs and target: (x, y)." if table and targets else "")
        )
    inputs, wanted = source if pair else (source, None)
    if targets and wanted is None:
        raise TypeError(
            f"{name}: expected a tensor of targets alongside the inputs, received NoneType. For "
            "predictions without targets use tacit.predict."
        )
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
            shown = table and part == "inputs"
            hint = " tacit.data.TableEncoder encodes tables with missing values." if shown else ""
            raise ValueError(f"{name}: some {part} are not finite (NaN or infinite).{hint}")
    return batch


def as_tensor(name: str, data: Any) -> Tensor:
    """Return a tensor or array as a tensor.

    Args:
        name: Name of the data in the error message.
        data: A tensor, or an object that torch converts to one.

    Raises:
        TypeError: If torch can't convert it.
    """
    try:
        if isinstance(data, Tensor | list | tuple):
            return torch.as_tensor(data)
        # torch would read a pandas DataFrame column by column.
        array = data if isinstance(data, np.ndarray) else _array(data)
        array = array.copy() if min(array.strides, default=0) < 0 else array
        with warnings.catch_warnings():
            # pandas' columns are not; nothing here writes to them, so a copy isn't needed.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError):
        kind, hint = type(data).__name__, ""
        if not isinstance(data, Tensor | str) and np.asarray(data).dtype.kind in "OUSMm":
            hint = (
                f" with text, dates or mixed values{_columns(data)}. Pass labels as integers, as "
                "from np.unique(labels, return_inverse=True), and columns as numbers, as from "
                "tacit.data.TableEncoder; or use the estimators of tacit.integrations.sklearn, "
                "which take such tables as they are."
            )
        raise TypeError(
            f"{name}: expected tensors or arrays, received {kind}{hint or '.'}"
        ) from None


def _array(data: Any) -> np.ndarray:
    """Return an array; mixed numbers, booleans and missing values of pandas as floats together."""
    dtypes = list(getattr(data, "dtypes", [])) if _is_frame(data) else []
    kinds = {_kind(dtype) for dtype in dtypes}
    nullable = any(not isinstance(dtype, np.dtype) for dtype in dtypes)
    if kinds <= {*"biuf"} and (len(kinds) > 1 or nullable):
        return np.asarray(data.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.array(data)


def _is_frame(data: object) -> bool:
    """Return whether data are a pandas DataFrame, without importing pandas."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def _kind(dtype: object) -> str:
    return str(getattr(dtype, "kind", "O"))


def _columns(data: Any) -> str:
    """Return which columns of a DataFrame hold no numbers, for an error message."""
    if not _is_frame(data):
        return ""
    names = [
        str(name) for name, dtype in zip(data.columns, data.dtypes, strict=True)
        if _kind(dtype) not in "biuf"
    ]  # fmt: skip
    return f" in {listed(names)}" if names else ""


def check_lengths(name: str, inputs: Sequence[Tensor], targets: Tensor | None) -> None:
    """Raise ValueError unless all tensors have the same, positive number of examples.

    Args:
        name: Name of the data in the error message.
        inputs: Tensors with the examples in the first dimension.
        targets: A tensor with the examples in the first dimension, or None.
    """
    every = [*inputs] if targets is None else [*inputs, targets]
    shapes = " and ".join(str(tuple(tensor.shape)) for tensor in every)
    if not inputs or not all(tensor.ndim for tensor in every):
        raise ValueError(f"{name}: expected examples in the first dimension, received {shapes}.")
    if len({len(tensor) for tensor in every}) > 1:
        what = "the same number of examples in all inputs"
        wanted = what if targets is None else "one target for each input"
        raise ValueError(f"{name}: expected {wanted}, received shapes {shapes}.")
    if not len(every[0]):
        raise ValueError(f"{name}: there are no examples.")
