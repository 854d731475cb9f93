"""What a variational model knows of an optimizer that defers updates of its factors.

`tacit.SGD` may update wide covariance factors rarely. The model asks it to draw weights from the
factors as they should be now, and to settle them, that is to apply all deferred updates, before
any other access.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from tacit.weights.distribution import Distribution


class Deferral(Protocol):
    """Updates of factors that an optimizer has deferred."""

    def draw(
        self, distributions: Mapping[str, Distribution], shape: tuple[int, ...]
    ) -> dict[str, dict[str, Tensor]]:
        """Draw the weights of the layers whose updates it defers: label -> tensors by name."""

    def settle(self) -> None:
        """Apply all deferred updates."""

    def forget_gradients(self) -> None:
        """Drop the factors' gradients."""

    def end(self) -> None:
        """Apply all deferred updates, and defer no more."""
