"""Several draws in one pass: the batch is cut into groups, each with its own weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tacit._tree import map_tensors, tensors_in
from tacit.functional import Caller, Inputs, Weights, concatenate


def batch_size(module: nn.Module, inputs: Inputs) -> int:
    """Return the batch size B: the common first dimension of the tensors among the inputs.

    Raises:
        ValueError: If the tensors have no common first dimension, or if it is not the batch.
    """
    recurrent_or_attention = nn.RNNBase | nn.MultiheadAttention | nn.Transformer
    if isinstance(module, recurrent_or_attention) and not module.batch_first:
        raise ValueError(
            f"draws: the batch must be the first dimension of every input, but this "
            f"nn.{type(module).__name__} has batch_first=False."
        )
    shapes = [tuple(tensor.shape) for tensor in tensors_in(inputs) if tensor.ndim]
    if len({shape[0] for shape in shapes}) != 1:
        received = ", ".join(map(str, shapes)) or "none"
        raise ValueError(
            "draws: expected tensor inputs that all have the batch as their first dimension; "
            f"received shapes: {received}."
        )
    return shapes[0][0]


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
    count = len(next(iter(weights.values())))
    small, larger = divmod(size, count)
    outputs = []
    for first, last, rows in ((0, larger, small + 1), (larger, count, small)):
        if first < last:
            some = {name: stacked[first:last] for name, stacked in weights.items()}
            piece = _cut(inputs, first * (small + 1), last - first, rows)
            outputs.append(_merge(caller.many(module, some, piece, cut=True), rows))
    return concatenate(outputs)


def _cut(inputs: Inputs, start: int, groups: int, rows: int) -> Inputs:
    def cut(tensor: Tensor) -> Tensor:
        if not tensor.ndim:
            return tensor
        return tensor[start : start + groups * rows].reshape(groups, rows, *tensor.shape[1:])

    pieces: Inputs = map_tensors(cut, inputs)
    return pieces


def _merge(output: Any, rows: int) -> Any:
    def merge(tensor: Tensor) -> Tensor:
        if tensor.ndim < 2 or tensor.shape[1] != rows:
            raise ValueError(
                "draws: expected outputs whose first dimension is the batch; for a group of "
                f"{rows} examples the module returned the shape {tuple(tensor.shape[1:])}."
            )
        return tensor.flatten(0, 1)

    return map_tensors(merge, output)
