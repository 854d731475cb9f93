"""Forms of noise that act on a layer's activations, so that no weights have to be formed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Scaled:
    """Each input unit of the layer is multiplied by a factor.

    Args:
        factor: One factor per unit, (*sample, units).
        axis: Dimension of the weight that runs over the units.
    """

    factor: Tensor
    axis: int
