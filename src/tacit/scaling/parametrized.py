"""Interface of models with their own parametrization, for `param_groups` and `describe`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ScalingRow:
    """Scaling of one tensor: a row of `describe`."""

    name: str
    shape: tuple[int, ...]
    role: str
    fan_in: int
    fan_out: int
    std: float
    sgd: float
    adam: float


class Parametrized(ABC):
    """A model with its own parametrization, such as a variational model."""

    @abstractmethod
    def param_groups(
        self, lr: float, optimizer: str = "sgd", *, weight_decay: float = 0.0
    ) -> list[dict[str, Any]]:
        """Return parameter groups: each parameter exactly once, with its learning rate."""

    @abstractmethod
    def scaling_rows(self) -> list[ScalingRow]:
        """Return role, fans, initial scale and learning-rate factors of each tensor."""
