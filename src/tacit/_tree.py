"""Tensors inside nested inputs and outputs: tuples, lists, dicts, dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Return a copy of `tree` with every tensor replaced by `function(tensor)`.

    Containers known to PyTorch's pytrees are entered, dataclasses too; any other leaf is kept.
    """

    def visit(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return function(leaf)
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            return _map_fields(function, leaf)
        return leaf

    return tree_map(visit, tree)


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors of `tree`, in the order in which `map_tensors` visits them."""
    found: list[Tensor] = []
    map_tensors(found.append, tree)
    return found


def with_tensors(tree: Any, tensors: Iterable[Tensor]) -> Any:
    """Return a copy of `tree` that holds `tensors` in place of its own, in the same order."""
    replacements = iter(tensors)
    return map_tensors(lambda _: next(replacements), tree)


def _map_fields(function: Callable[[Tensor], Any], instance: Any) -> Any:
    # Set on a shallow copy: works for frozen dataclasses and for those with their own __init__.
    result = copy.copy(instance)
    for field in dataclasses.fields(instance):
        value = map_tensors(function, getattr(instance, field.name))
        object.__setattr__(result, field.name, value)
    return result
