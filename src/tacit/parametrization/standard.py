"""The standard parametrization: what PyTorch does, up to constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tacit.parametrization.base import Parametrization, optimizer_family
from tacit.parametrization.tensors import Role, Tensor


@dataclass(frozen=True)
class Standard(Parametrization):
    """SP: variance 1/fan_in, the same learning rate for all.

    The best learning rate falls with width, and the features of a wide network hardly move.

    Args:
        roles: Roles named by hand; they show in `describe` but change nothing here.
    """

    roles: Mapping[str, Role] = field(default_factory=dict)

    def std(self, tensor: Tensor) -> float:
        return tensor.fans.scale

    def learning_rate(self, tensor: Tensor, optimizer: str) -> float:
        optimizer_family(optimizer)
        return 1.0
