"""What our networks have in common: they remember their arguments."""

from __future__ import annotations

from typing import Any

from torch import nn


class Rebuildable(nn.Module):
    """A network that can be made again from `arguments`, plain data."""

    arguments: dict[str, Any]
