"""What our networks have in common: they remember their arguments."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn


class Rebuildable(nn.Module):
    """A network that can be made again from `arguments`, plain data."""

    arguments: dict[str, Any]


class Stack(nn.Sequential, Rebuildable):
    """Layers one after the other. A slice of them is an ordinary `nn.Sequential`."""

    def __getitem__(self, index: slice | int) -> Any:
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)
