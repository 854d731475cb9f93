"""Tensors in nested inputs and outputs: tuples, lists, dicts, dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tacit._support.private_torch import tree_map

# Non-tensor leaves that an output may hold; they must be the same for every sample.
PLAIN = (str, bytes, bool, int, float, complex, enum.Enum, torch.dtype, torch.device)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a copy of `tree` with every leaf replaced by `function(leaf)`.

    Recurses into PyTorch pytree containers and dataclasses; everything else is a leaf.
    """

    def visit(leaf: Any) -> Any:
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            return _map_fields(function, leaf)
        return function(leaf)

    return tree_map(visit, tree)


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Return a copy of `tree` with every tensor replaced by `function(tensor)`."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors of `tree`, in the order in which `map_tensors` visits them."""
    return [leaf for leaf in leaves_in(tree) if isinstance(leaf, Tensor)]


def leaves_in(tree: Any) -> list[Any]:
    """Return the leaves of `tree`, in order."""
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        found.append(leaf)
        return leaf  # some containers validate their contents

    map_leaves(note, tree)
    return found


def with_tensors(tree: Any, tensors: Iterable[Tensor]) -> Any:
    """Return a copy of `tree` that holds `tensors` in place of its own, in the same order."""
    replacements = iter(tensors)
    return map_tensors(lambda _: next(replacements), tree)


def check_stackable(output: Any, like: Any = None) -> None:
    """Raise ValueError if an output can't be stacked with those of other samples.

    Args:
        output: Output of one sample: tensors and values of the types in `PLAIN`.
        like: Output of another sample, whose non-tensor values must be the same.
    """
    leaves = leaves_in(output)
    for leaf, other in zip(leaves, leaves if like is None else leaves_in(like), strict=True):
        if isinstance(leaf, Tensor) or leaf is None:
            continue
        if not isinstance(leaf, PLAIN):
            raise ValueError(
                f"The module returned a {type(leaf).__name__}, which can't be stacked; "
                "let it return tensors in tuples, dicts or dataclasses. (A Hugging Face model "
                "takes use_cache=False.)"
            )
        if leaf != other:
            raise ValueError(
                f"The module returned the values {other!r} and {leaf!r} for two samples; "
                "let it return a tensor."
            )


def stack(outputs: list[Any]) -> Any:
    """Join outputs of the same structure along a new first dimension of their tensors."""
    for output in outputs:
        check_stackable(output, like=outputs[0])
    return _join(torch.stack, outputs)


def concatenate(outputs: list[Any]) -> Any:
    """Join outputs of the same structure along the first dimension of their tensors."""
    return outputs[0] if len(outputs) == 1 else _join(torch.cat, outputs)


def _join(function: Any, outputs: list[Any]) -> Any:
    columns: Iterable[tuple[Tensor, ...]] = zip(*map(tensors_in, outputs), strict=True)
    return with_tensors(outputs[0], [function(column) for column in columns])


def _map_fields(function: Callable[[Any], Any], instance: Any) -> Any:
    # Setting fields of a shallow copy also works for frozen dataclasses and custom __init__.
    result = copy.copy(instance)
    for field in dataclasses.fields(instance):
        value = map_leaves(function, getattr(instance, field.name))
        object.__setattr__(result, field.name, value)
    return result
