"""How large the weights' standard deviations start: the initialization is the prior."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch


def initial_scales(shapes: Mapping[str, torch.Size]) -> dict[str, float]:
    """Return the initial standard deviation of each tensor of a layer: 1/sqrt(fan_in).

    The fan-in of a tensor of shape (out, in, *kernel) is in * prod(kernel). A vector beside such
    tensors (a bias) has their largest fan-in, as in PyTorch's default initialization. Vectors on
    their own (a norm layer's) have their length, a scalar has 1.

    Args:
        shapes: The tensors of one layer, by name.

    Example:
        >>> import torch
        >>> initial_scales({"weight": torch.Size([10, 16]), "bias": torch.Size([10])})
        {'weight': 0.25, 'bias': 0.25}
    """
    fans = {name: math.prod(shape[1:]) for name, shape in shapes.items() if len(shape) > 1}
    widest = max(fans.values(), default=None)
    for name, shape in shapes.items():
        if name not in fans:
            fans[name] = math.prod(shape) if widest is None else widest
    return {name: max(1, fans[name]) ** -0.5 for name in shapes}
