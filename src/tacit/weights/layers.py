"""The layers of a module, and its random layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor, nn

from tacit._support.names import join
from tacit.weights.covariance import Covariance, Factor, Shapes

Layers: TypeAlias = Mapping[str, Mapping[str, Tensor]]
"""Layer name -> the layer's own parameters, by name."""


@dataclass(frozen=True)
class RandomLayer:
    """A layer some or all of whose parameters are jointly random.

    Args:
        name: Dotted name of the layer in the wrapped module; "" is the module itself.
        shapes: Shapes of the random parameters, by their names within the layer (weight, bias).
        covariance: The structure of their covariance.
        factors: The trainable tensors of the covariance, by name.
        label: Name shown to users: the layer's or, if parameters were chosen by name, that of the
            first of them.
        padding: Rows without noise: name of an embedding's weight -> padding indices.

    Attributes:
        parameters: The random parameters: name within the layer -> name in the module.
    """

    name: str
    shapes: Shapes
    covariance: Covariance
    factors: Mapping[str, Factor]
    label: str
    padding: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        parameters = {tensor: join(self.name, tensor) for tensor in self.shapes}
        object.__setattr__(self, "parameters", parameters)


def layers_of(module: nn.Module) -> Layers:
    """Return all layers that own parameters.

    Raises:
        TypeError: If it is not a module.
        ValueError: If the module has no parameters.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"expected an nn.Module, received {module!r}.")
    layers = {
        name: own
        for name, layer in module.named_modules(remove_duplicate=False)
        if (own := dict(layer.named_parameters(recurse=False)))
    }
    if not layers:
        raise ValueError(f"variational: {type(module).__name__} has no parameters.")
    return layers
