"""The average of a model's iterates over the last part of training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support.private_torch import BatchNorm


class Average:
    """A running mean of parameters, by default with the same weight for every iterate.

    At a constant learning rate the iterates of SGD move around a minimum; their mean is closer to
    it (Polyak and Juditsky, 1992; Izmailov et al., 2018).

    Args:
        values: Means by name; empty before the first update.
        count: Number of iterates in the mean.
    """

    def __init__(self, values: Mapping[str, Tensor] | None = None, count: int = 0) -> None:
        self.values = dict(values or {})
        self.count = count

    @torch.no_grad()
    def update(self, parameters: Mapping[str, Tensor], window: float = math.inf) -> None:
        """Add an iterate to the mean. Frozen parameters are left out: a mean would turn -0 into 0.

        Args:
            parameters: The iterate, by name.
            window: Number of iterates over which earlier ones are forgotten, exponentially.
        """
        self.count += 1
        if not self.values:
            self.values = {
                name: value.detach().clone()
                for name, value in parameters.items()
                if value.requires_grad
            }
            return
        for name, mean in self.values.items():
            mean.lerp_(parameters[name], 1 / min(self.count, max(1.0, window)))

    @contextmanager
    def in_place_of(self, parameters: Mapping[str, Tensor]) -> Iterator[None]:
        """Set parameters to their means within the context."""
        current = {name: parameters[name].detach().clone() for name in self.values}
        self.copy_to(parameters)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in current.items():
                    parameters[name].copy_(value)

    @torch.no_grad()
    def copy_to(self, parameters: Mapping[str, Tensor]) -> None:
        """Set parameters to their means."""
        for name, value in self.values.items():
            parameters[name].copy_(value)


@torch.no_grad()
def recompute_statistics(model: nn.Module, calls: Iterable[Callable[[], Any]]) -> None:
    """Recompute the running statistics of batch norm as means over calls in train mode.

    The statistics of training belong to the iterates, not to their average.

    Args:
        model: The model.
        calls: Functions that each call the model on a batch.
    """
    norms = [m for m in model.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    norms = [norm for norm in norms if norm.training]
    if not norms:
        return
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative
    try:
        for call in calls:
            call()
    finally:
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum
