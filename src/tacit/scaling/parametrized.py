"""What `param_groups` and `describe` ask of a model with a parametrization of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ScalingRow:
    """How one tensor scales: a row of `describe`."""

    name: str
    shape: tuple[int, ...]
    role: str
    fan_in: int
    fan_out: int
    std: float
    sgd: float
    adam: float


class Parametrized(ABC):
    """A model that knows how its parameters scale: a variational model."""

    @abstractmethod
    def param_groups(
        self, lr: float, optimizer: str = "sgd", *, weight_decay: float = 0.0
    ) -> list[dict[str, Any]]:
        """Return parameter groups for an optimizer: every parameter once, with its rate."""

    @abstractmethod
    def scaling_rows(self) -> list[ScalingRow]:
        """Return one row for each tensor: its role, fans, initial scale and learning rates."""
