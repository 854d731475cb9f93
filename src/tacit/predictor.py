"""What a method has learned: functions, and what their outputs mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tacit.likelihood import Likelihood


@dataclass(frozen=True)
class Cost:
    """What training took.

    Args:
        parameters: Numbers that are kept to predict.
        seconds: Of training, calibration included.
        peak_bytes: Most memory in use meanwhile beyond what was in use before; NaN where the system
            doesn't tell.
    """

    parameters: int
    seconds: float
    peak_bytes: float


class Predictor(nn.Module, ABC):
    """A distribution over functions, however it is kept; `tacit.predict` and `evaluate` take it.

    Args:
        likelihood: What outputs mean.
    """

    cost: Cost | None = None
    """What training took."""

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self.likelihood = likelihood

    @abstractmethod
    def functions(
        self, *, samples: int, chunk_size: int | None, generator: torch.Generator | None
    ) -> Callable[..., Tensor]:
        """Return a function from a network's inputs to the outputs of M functions, (M, B, ...).

        Args:
            samples: How many to draw, where they are drawn.
            chunk_size: How many to run at a time, to bound memory.
            generator: Source of randomness.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return how to make it again, as plain data; not its numbers."""

    @classmethod
    @abstractmethod
    def build(
        cls, given: Mapping[str, Any], make_net: Callable[[], nn.Module], likelihood: Likelihood
    ) -> Predictor:
        """Return a predictor from what `describe` gave, with numbers yet to be loaded."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all its numbers."""
        return self.state_dict()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        self.load_state_dict(dict(tensors))


def tensor_of(output: Any) -> Tensor:
    """Return a network's output, or the logits in it, as Hugging Face's outputs have them."""
    logits = output["logits"] if isinstance(output, dict) and "logits" in output else output
    logits = getattr(logits, "logits", logits)
    if not isinstance(logits, Tensor):
        kind = type(output).__name__
        raise TypeError(f"model: expected a tensor, or one in .logits, as output; received {kind}.")
    return logits
