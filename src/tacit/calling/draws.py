"""Several draws in one pass: the batch is cut into groups, each with its own weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from tacit._support.trees import concatenate, map_tensors, tensors_in
from tacit.calling.caller import Caller, Inputs, Weights
from tacit.calling.grouped_weights import call_grouped


def batch_size(module: nn.Module, inputs: Inputs) -> int:
    """Return the batch size B: the common first dimension of the tensors among the inputs.

    Raises:
        ValueError: If the inputs have no common first dimension, or if it is not the batch.
    """
    if (obstacle := _obstacle(module)) is not None:
        raise ValueError(f"draws: {obstacle}; use draws=1.")
    shapes = [tuple(tensor.shape) for tensor in tensors_in(inputs) if tensor.ndim]
    if len({shape[0] for shape in shapes}) != 1:
        received = ", ".join(map(str, shapes)) or "none"
        raise ValueError(
            "draws: expected tensor inputs that all have the batch as their first dimension; "
            f"received shapes: {received}. Use draws=1 otherwise."
        )
    size: int = shapes[0][0]
    args, kwargs = inputs
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple) and len(value) == size and not tensors_in(value):
            raise ValueError(
                f"draws: a {type(value).__name__} with one entry for each of the {size} examples "
                "can't be cut into groups; pass a tensor, or use draws=1."
            )
    return size


def call_in_groups(
    caller: Caller, module: nn.Module, weights: Weights, inputs: Inputs, size: int
) -> Any:
    """Call the module on a batch cut into K contiguous groups, one set of weights for each.

    The sizes of the groups differ by one at most. Groups of the same size run in one stacked call,
    so at most two are needed. The result is in the order of the batch.

    Args:
        caller: Calls the module on groups of equal size.
        module: The module to call.
        weights: K sets of weights, (K, *shape) each.
        inputs: Its arguments, B examples.
        size: The batch size B, at least K.
    """
    rows, larger = divmod(size, len(next(iter(weights.values()))))
    sizes = ([rows + 1] if larger else []) + [rows]

    def carefully() -> Any:
        outputs = caller.many(module, _pieces(weights, inputs, larger, rows), cut=True)
        return concatenate([_merge(o, n) for o, n in zip(outputs, sizes, strict=True)])

    return call_grouped(caller, module, weights, inputs, size, carefully)


def _pieces(
    weights: Weights, inputs: Inputs, larger: int, rows: int
) -> Iterator[tuple[Weights, Inputs]]:
    """Yield the first `larger` groups, of rows + 1 examples, and the others, of `rows`."""
    split = larger * (rows + 1)
    if larger:
        first = {name: stacked[:larger] for name, stacked in weights.items()}
        yield first, _cut(inputs, slice(None, split), rows + 1)
    rest = {name: stacked[larger:] for name, stacked in weights.items()}
    yield rest, _cut(inputs, slice(split, None), rows)


def _cut(inputs: Inputs, part: slice, rows: int) -> Inputs:
    def cut(tensor: Tensor) -> Tensor:
        if not tensor.ndim:
            return tensor
        return tensor[part].reshape(-1, rows, *tensor.shape[1:])

    pieces: Inputs = map_tensors(cut, inputs)
    return pieces


def _merge(output: Any, rows: int) -> Any:
    def merge(tensor: Tensor) -> Tensor:
        if tensor.ndim < 2 or tensor.shape[1] != rows:
            raise ValueError(
                "draws: expected outputs whose first dimension is the batch; for a group of "
                f"{rows} examples the module returned the shape {tuple(tensor.shape[1:])}. Compute "
                "a loss outside the module, or use draws=1."
            )
        return tensor.flatten(0, 1)

    return map_tensors(merge, output)


def batch_first(module: nn.Module) -> bool:
    """Return whether nothing is known against cutting batches: see `_obstacle`."""
    return _obstacle(module) is None


def _obstacle(module: nn.Module) -> str | None:
    """Return why the first dimension is not the batch in PyTorch's own sequence modules."""
    name = f"nn.{type(module).__name__}"
    if isinstance(module, nn.RNNBase):
        return f"the state that {name} returns doesn't have the batch first"
    if not type(module).__module__.startswith("torch.nn."):
        return None  # a module of the user's own may turn its inputs around
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and not layer.batch_first:
            return f"the batch must be the first dimension, but this {name} has batch_first=False"
    return None
