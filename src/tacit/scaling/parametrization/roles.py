"""Kind, fan-in, fan-out and role of a parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import nn

from tacit._support.names import join
from tacit._support.private_torch import ConvTranspose, NormBase

Kind: TypeAlias = Literal["weight", "embedding", "bias", "gain", "bare"]
"""weight: multiplies its input. gain: weight or bias of a norm layer. bare: outside of layers."""

Role: TypeAlias = Literal["input", "hidden", "output", "vector", "scalar"]
"""Which dimensions grow with width: fan-out (input), both (hidden), fan-in (output), the only one
(vector), none (scalar)."""

GATES = {"LSTM": 4, "GRU": 3}


@dataclass(frozen=True)
class Fans:
    """Kind, fan-in and fan-out of a parameter.

    Args:
        kind: Kind of the parameter within its layer.
        fan_in: For a weight, the number of inputs summed, in * prod(kernel) / groups. For an
            embedding, 1: one row is looked up. For a bias, that of its weight, as in PyTorch's
            initialization. For other kinds, the number of features.
        fan_out: Number of output features. The gates of a recurrent layer and the three parts of
            attention's packed projection are separate maps, and are not counted together.

    Examples:
        >>> from torch import nn
        >>> fans = fans_of(nn.Linear(16, 4))["weight"]
        >>> fans.fan_in, fans.fan_out, fans.scale
        (16, 4, 0.25)
    """

    kind: Kind
    fan_in: int
    fan_out: int

    @property
    def scale(self) -> float:
        """The standard parametrization's scale, fan_in^-1/2."""
        return 1 / math.sqrt(max(1, self.fan_in))


@dataclass(frozen=True)
class ScaledParameter:
    """A parameter with its role, its fans, and its fans in the base network if there is one.

    Examples:
        >>> import tacit
        >>> parameters = tacit.Standard().parameters_of(tacit.models.MLP(4, [256], 3))
        >>> [(name, parameter.role) for name, parameter in parameters.items()]
        [('1.weight', 'input'), ('1.bias', 'vector'), ('3.weight', 'output'), ('3.bias', 'scalar')]
    """

    name: str
    role: Role
    fans: Fans
    base: Fans | None = None


def fans_of(module: nn.Module) -> dict[str, Fans]:
    """Return kind and fans of every parameter by name; tied parameters appear under the first.

    Examples:
        >>> from torch import nn
        >>> fans_of(nn.Conv2d(16, 32, 3, groups=2))["weight"]
        Fans(kind='weight', fan_in=72, fan_out=32)
    """
    names = {id(parameter): name for name, parameter in reversed(list(module.named_parameters()))}
    found: dict[str, Fans] = {}
    for path, layer in module.named_modules():
        own = dict(layer.named_parameters(recurse=False))
        for tensor, fans in _layer_fans(path, layer, own):
            found.setdefault(names[id(own[tensor])], fans)
    return {name: found[name] for name, _ in module.named_parameters()}


def _layer_fans(
    path: str, layer: nn.Module, own: dict[str, nn.Parameter]
) -> Iterator[tuple[str, Fans]]:
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        yield "weight", Fans("embedding", 1, layer.embedding_dim)
        return
    if isinstance(layer, NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm):
        for tensor, value in own.items():
            yield tensor, Fans("gain", value.numel(), value.numel())
        return
    fan_in = 1
    for tensor, value in own.items():
        if value.ndim > 1 and "weight" in join(path, tensor):
            fans = _weight_fans(layer, tensor, value.shape)
            fan_in = max(fan_in, fans.fan_in)
            yield tensor, fans
    for tensor, value in own.items():
        if value.ndim < 2 and "bias" in tensor:
            yield tensor, Fans("bias", fan_in, value.numel() // _parts(layer, tensor))
        elif value.ndim < 2 or "weight" not in join(path, tensor):
            features = value.shape[-1] if value.ndim else 1
            yield tensor, Fans("bare", features, features)


def _weight_fans(layer: nn.Module, tensor: str, shape: torch.Size) -> Fans:
    kernel = math.prod(shape[2:])
    if isinstance(layer, ConvTranspose):
        groups = layer.groups
        return Fans("weight", shape[0] // groups * kernel, shape[1] * groups)
    if type(layer).__name__ == "Conv1D":  # Hugging Face's linear layer, whose weight is transposed
        return Fans("weight", shape[0], shape[1])
    return Fans("weight", shape[1] * kernel, shape[0] // _parts(layer, tensor))


def _parts(layer: nn.Module, tensor: str) -> int:
    """Return how many separate maps are packed into the rows of a parameter."""
    if isinstance(layer, nn.RNNBase):
        return 1 if "hr" in tensor else GATES.get(layer.mode, 1)
    if isinstance(layer, nn.MultiheadAttention):
        return 3 if tensor.startswith("in_proj") else 1
    return 1
