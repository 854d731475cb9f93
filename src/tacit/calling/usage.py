"""How a module uses its parameters: which are tied, and whether samples can replace them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.utils import checkpoint

from tacit._support.trees import tensors_in


class WeightUseError(RuntimeError):
    """The module uses random parameters in a way that rules out replacing them by samples."""


def tied_names(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return for each name of a tied parameter its names in the other layers that share it.

    One name per layer: a parameter replaced twice, under two names of the same layer, would be
    restored to the first replacement instead of the original.
    """
    places: dict[int, dict[tuple[int, str], list[str]]] = {}
    for path, layer in module.named_modules(remove_duplicate=False):
        for tensor, parameter in layer.named_parameters(recurse=False):
            same_layer = places.setdefault(id(parameter), {}).setdefault((id(layer), tensor), [])
            same_layer.append(f"{path}.{tensor}".removeprefix("."))
    return {
        name: tuple(others[0] for other, others in layers.items() if other != place)
        for layers in places.values()
        if len(layers) > 1
        for place, names in layers.items()
        for name in names
    }


def separate(state: dict[str, Any]) -> None:
    """Replace the tensors of a state dict that are an earlier one under another name by copies."""
    seen = set[tuple[int, torch.Size]]()
    for name, value in state.items():
        if isinstance(value, Tensor) and value.numel() and not value.is_meta:
            place = (value.data_ptr(), value.shape)
            if place in seen:
                state[name] = value.clone()
            seen.add(place)


def checked_use(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    aliases: Mapping[str, tuple[str, ...]],
    call: Callable[[], Any],
) -> Any:
    """Return `call()`; check that the module uses the sampled weights and doesn't change them.

    Detects parameters tied after wrapping, parameters that forward reads from elsewhere than their
    layer, such as a plain list, and samples that forward changes, including through `.data`. Does
    not detect a frozen mean in a plain list, or any of these that starts after the checked call.

    Args:
        module: The module that is called.
        weights: The weights that `call` gives to it.
        aliases: The ties that `call` handles, from `tied_names`.
        call: Calls the module.

    Raises:
        WeightUseError: If one of these is detected.
    """
    _check_ties(tied_names(module), aliases, weights)
    before = {name: _checksum(tensor) for name, tensor in weights.items()}
    nodes = {tensor.grad_fn for tensor in weights.values()}
    output = call()
    for name, tensor in weights.items():
        if _checksum(tensor) != before[name]:
            raise WeightUseError(
                f"forward changes {name!r} in place, which is a sample here: the mean is not "
                "changed. Constrain the parameter after each optimizer step instead, or name only "
                "other layers in `where`."
            )
    if (bypassed := _bypassed(module, weights, nodes, output)) is not None:
        raise WeightUseError(
            f"forward uses the parameter {bypassed!r} other than as an attribute of its layer, so "
            "it is not random there. Read it from the layer, not from a list, dict or closure."
        )
    return output


def _check_ties(
    ties: Mapping[str, tuple[str, ...]],
    known: Mapping[str, tuple[str, ...]],
    weights: Mapping[str, Tensor],
) -> None:
    for name in weights:
        now, before = set(ties.get(name, ())), set(known.get(name, ()))
        if now != before:
            raise WeightUseError(
                f"The random parameter {name!r} was {'tied to' if now - before else 'untied from'} "
                f"{', '.join(sorted(now ^ before))} after the module was made variational; wrap "
                "the changed module again."
            )


def _checksum(tensor: Tensor) -> tuple[str, str]:
    """Return two statistics that a change of entries alters; as text, so that NaN equals NaN."""
    with torch.no_grad():
        total, norm = tensor.sum(dtype=torch.float64), torch.linalg.vector_norm(tensor)
    return str(total.item()), str(norm.item())


def _bypassed(
    module: nn.Module, weights: Mapping[str, Tensor], nodes: set[Any], output: Any
) -> str | None:
    """Return a random parameter that the output depends on other than through its sample.

    Args:
        module: The module that was called.
        weights: The weights it was called with.
        nodes: The nodes of the graph that computed them.
        output: The module's output.
    """
    means = {}
    for name in weights:
        path, _, key = name.rpartition(".")
        means[id(module.get_submodule(path)._parameters[key])] = name
    seen, open_nodes = set(nodes), [tensor.grad_fn for tensor in tensors_in(output)]
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (found := means.get(id(getattr(node, "variable", None)))) is not None:
            return found
        open_nodes += [following for following, _ in node.next_functions]
    return None


def inside_checkpoint(until: Callable[..., Any] | None = None) -> bool:
    """Return whether checkpointing, or another autograd function, is on the call stack.

    Args:
        until: Where to stop: the innermost call of this function; None for the whole stack.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (until is None or frame.f_code is not until.__code__):
        first = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
        if frame.f_code.co_filename == checkpoint.__file__ or isinstance(first, FunctionCtx):
            return True
        frame = frame.f_back
    return False
