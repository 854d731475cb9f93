"""The interface between a variational model and an optimizer that defers factor updates.

`tacit.SGD` may defer the updates of wide covariance factors. The model then lets it draw the
weights from the up-to-date factors, and has it settle the factors (apply all deferred updates)
before any other access.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from tacit.weights.distribution import Distribution


class Deferral(Protocol):
    """The factor updates that an optimizer has deferred."""

    def draw(
        self, distributions: Mapping[str, Distribution], shape: tuple[int, ...]
    ) -> dict[str, dict[str, Tensor]]:
        """Draw the weights of the layers with deferred updates: label -> tensors by name."""

    def settle(self) -> None:
        """Apply all deferred updates."""
