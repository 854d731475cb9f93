"""Adapters: trained terms of low rank in the linear layers of a frozen module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

SCALE = 16.0  # of the term: 16/R B A x, so that a learning rate serves all ranks
ATTRIBUTE = "adapter"  # of a layer that has one


class Adapter(nn.Module):
    """The term 16/R B A x of a linear layer, with A (R, inputs) random and B (outputs, R) zero.

    Attributes:
        down: A, as a linear layer.
        up: B, as a linear layer.
    """

    def __init__(self, inputs: int, outputs: int, rank: int, like: Tensor) -> None:
        super().__init__()
        # Half precision has too few digits for the small steps of training.
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        place: dict[str, Any] = {"bias": False, "device": like.device, "dtype": dtype}
        self.down = nn.Linear(inputs, rank, **place)
        self.up = nn.Linear(rank, outputs, **place)
        nn.init.zeros_(self.up.weight)
        self.scale = SCALE / rank
        self.hook: Any = None

    @property
    def rank(self) -> int:
        """The rank R."""
        return self.down.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Return the term for the inputs of the layer."""
        found: Tensor = self.up(self.down(x.to(self.down.weight.dtype))) * self.scale
        return found

    def merged(self) -> Tensor:
        """Return 16/R B A, (outputs, inputs)."""
        return self.up.weight @ self.down.weight * self.scale


def add_adapters(
    module: nn.Module, rank: int, layers: Sequence[str], parameters: Sequence[str]
) -> None:
    """Freeze a module but for some parameters, and give some of its linear layers adapters.

    Layers keep their classes, names and weights: a forward hook adds the term.

    Args:
        module: The module, which is changed.
        rank: Rank of the adapters.
        layers: Names of the layers that get one.
        parameters: Names of the parameters that stay trained.

    Raises:
        ValueError: If the module has adapters already, a layer is not linear, or the rank is larger
            than its smaller side.
    """
    if next(adapted_layers(module), None) is not None:
        raise ValueError(
            "adapters: the module has adapters already. Merge them into its weights with "
            "tacit.deterministic, or leave out tacit.adapters: what is trained is random by "
            "default."
        )
    sizes = {name: _sizes(module, name) for name in layers}
    for name, size in sizes.items():
        if rank > min(size):
            raise ValueError(
                f"adapters: expected a rank of at most {min(size)}, the smaller side of the layer "
                f"{name!r}, received {rank}. Choose a smaller rank, or other layers."
            )
    kept = set(parameters)
    for name, value in module.named_parameters():
        value.requires_grad_(name in kept)
    for name, (inputs, outputs) in sizes.items():
        layer: Any = module.get_submodule(name)
        adapter = Adapter(inputs, outputs, rank, layer.weight).train(layer.training)
        layer.add_module(ATTRIBUTE, adapter)
        adapter.hook = layer.register_forward_hook(_with_term, with_kwargs=True)


def _with_term(layer: Any, args: Any, kwargs: Any, output: Tensor) -> Tensor:
    """Forward hook: add the adapter's term to a layer's output."""
    term: Tensor = layer.adapter(args[0] if args else next(iter(kwargs.values())))
    return output + term.to(output.dtype)


def merge_adapters(module: nn.Module) -> None:
    """Add the terms of all adapters to the weights of their layers, and remove the adapters.

    No parameter of a module that had adapters is frozen afterwards.
    """
    adapted = dict(adapted_layers(module))
    for layer, adapter in adapted.items():
        weight: Any = layer.weight
        with torch.no_grad():
            term = adapter.merged()
            weight.copy_(weight.to(term.dtype) + (term.T if _inputs_first(layer) else term))
        adapter.hook.remove()
        delattr(layer, ATTRIBUTE)
    if adapted:
        module.requires_grad_(True)


def adapted_layers(module: nn.Module) -> Iterator[tuple[nn.Module, Adapter]]:
    """Yield the layers of a module that have an adapter, each once, with the adapter."""
    for layer in list(module.modules()):
        if isinstance(adapter := getattr(layer, ATTRIBUTE, None), Adapter):
            yield layer, adapter


def describe_adapters(module: nn.Module) -> dict[str, Any] | None:
    """Return the arguments of `add_adapters` that gave a module its adapters, None if it has none.

    JSON-serialisable.
    """
    adapted = dict(adapted_layers(module))
    if not adapted:
        return None
    names = [name for name, layer in module.named_modules() if layer in adapted]
    inside = tuple(f"{name}.{ATTRIBUTE}." for name in names)
    return {
        "rank": next(iter(adapted.values())).rank,
        "layers": names,
        "parameters": [
            name
            for name, value in module.named_parameters()
            if value.requires_grad and not name.startswith(inside)
        ],
    }


def is_linear(layer: nn.Module) -> bool:
    """Return whether a layer is linear: `nn.Linear` or Hugging Face's `Conv1D`."""
    return isinstance(layer, nn.Linear) or _inputs_first(layer)


def _inputs_first(layer: nn.Module) -> bool:
    return type(layer).__name__ == "Conv1D"


def _sizes(module: nn.Module, name: str) -> tuple[int, int]:
    """Return the number of inputs and outputs of a linear layer."""
    layer: Any = dict(module.named_modules()).get(name)
    if layer is None or not is_linear(layer):
        found = "none of that name" if layer is None else f"a {type(layer).__name__}"
        raise ValueError(f"adapters: expected a linear layer {name!r}, found {found}.")
    inputs, outputs = layer.weight.shape if _inputs_first(layer) else layer.weight.shape[::-1]
    return int(inputs), int(outputs)
