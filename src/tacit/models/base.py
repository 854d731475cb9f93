"""Base classes of the networks, which store their constructor arguments."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn


class Rebuildable(nn.Module):
    """A network that can be rebuilt from `arguments`, its constructor arguments as plain data.

    Examples:
        >>> import tacit
        >>> net = tacit.models.MLP(64, [32, 32], 10)
        >>> net.arguments
        {'inputs': 64, 'hidden': [32, 32], 'outputs': 10}
        >>> again = tacit.models.MODELS["MLP"](**net.arguments)
    """

    arguments: dict[str, Any]


class Stack(nn.Sequential, Rebuildable):
    """A sequence of layers; a slice of it is a plain `nn.Sequential`."""

    def __getitem__(self, index: slice | int) -> Any:
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)
