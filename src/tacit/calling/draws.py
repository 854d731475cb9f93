"""Several draws per batch: the batch is split into groups, each with its own weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from tacit._support.trees import concatenate, map_tensors, tensors_in
from tacit.calling.caller import Caller, Inputs, Weights
from tacit.calling.grouped_weights import call_grouped


def batch_size(module: nn.Module, inputs: Inputs) -> int:
    """Return the batch size B: the first dimension of all tensors among the inputs.

    Raises:
        ValueError: If the first dimensions differ, or if they are not the batch.
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
    """Call the module on a batch split into K contiguous groups, each with its own weights.

    Group sizes differ by at most one. Groups of equal size run in one stacked call, so at most two
    calls are needed. The output is in the order of the batch.

    Args:
        caller: Calls the module.
        module: The module to call.
        weights: K sets of weights, (K, *shape) each.
        inputs: The module's arguments, with B examples.
        size: The batch size B, at least K.
    """
    rows, larger = divmod(size, len(next(iter(weights.values()))))
    sizes = ([rows + 1] if larger else []) + [rows]

    def stacked_calls() -> Any:
        by_size = _groups_by_size(weights, inputs, larger, rows)
        outputs = caller.call_stacked(module, by_size, stacked_inputs=True)
        return concatenate([_merge(o, n) for o, n in zip(outputs, sizes, strict=True)])

    return call_grouped(caller, module, weights, inputs, size, fallback=stacked_calls)


def _groups_by_size(
    weights: Weights, inputs: Inputs, larger: int, rows: int
) -> Iterator[tuple[Weights, Inputs]]:
    """Yield the first `larger` groups, of rows + 1 examples each, then the others, of `rows`."""
    split = larger * (rows + 1)
    if larger:
        first = {name: stacked[:larger] for name, stacked in weights.items()}
        yield first, _stack_groups(inputs, slice(None, split), rows + 1)
    rest = {name: stacked[larger:] for name, stacked in weights.items()}
    yield rest, _stack_groups(inputs, slice(split, None), rows)


def _stack_groups(inputs: Inputs, part: slice, rows: int) -> Inputs:
    """Return part of the batch as groups of `rows` examples: (groups, rows, ...) per tensor."""

    def split(tensor: Tensor) -> Tensor:
        if not tensor.ndim:
            return tensor
        return tensor[part].reshape(-1, rows, *tensor.shape[1:])

    stacked: Inputs = map_tensors(split, inputs)
    return stacked


def _merge(output: Any, rows: int) -> Any:
    """Return outputs of stacked groups as those of one batch."""

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
    """Return whether the batch may be assumed to be the first dimension; see `_obstacle`."""
    return _obstacle(module) is None


def _obstacle(module: nn.Module) -> str | None:
    """Return why the first dimension isn't the batch in one of PyTorch's sequence modules."""
    name = f"nn.{type(module).__name__}"
    if isinstance(module, nn.RNNBase):
        return f"the state that {name} returns doesn't have the batch first"
    if not type(module).__module__.startswith("torch.nn."):
        return None  # a user's module may transpose its inputs before such a layer
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and not layer.batch_first:
            return f"the batch must be the first dimension, but this {name} has batch_first=False"
    return None
