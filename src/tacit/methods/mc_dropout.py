"""Dropout that stays on in predictions (Gal and Ghahramani, 2016)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit._support.names import join
from tacit.inference.functions import Predictor, tensor_of
from tacit.inference.headers import describe_network
from tacit.likelihood import DiscreteLikelihood, Likelihood
from tacit.methods.base import Method
from tacit.methods.task import Task

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True)
class MCDropout(Method):
    """A network whose layers each miss some of their inputs, others in each function.

    What goes into a linear or convolutional layer is dropped, units or whole channels; not what
    goes into the first one, the data. In training each example misses others, in predictions each
    function misses the same for all inputs. Probabilities are averaged.

    Args:
        rate: The share that is dropped.
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(f"MCDropout(rate): expected between 0 and 1, received {self.rate!r}.")

    def learn(self, task: Task) -> Dropped:
        net = task.net()
        predictor = Dropped(net, task.likelihood, self.rate)
        with predictor.dropping():
            task.fit(net)
        if isinstance(task.likelihood, DiscreteLikelihood):
            task.likelihood.averaging = "probs"
        return predictor


class Dropped(Predictor):
    """A network, and functions that each miss some inputs of its layers.

    Args:
        net: The network.
        likelihood: What its outputs mean.
        rate: The share that is dropped.
    """

    def __init__(self, net: nn.Module, likelihood: Likelihood, rate: float) -> None:
        super().__init__(likelihood)
        self.net, self.rate = net, rate
        self.layers = inner_layers(net)

    @contextmanager
    def dropping(self) -> Iterator[None]:
        """Drop inputs of the layers in train mode, of each example others."""

        def drop(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            units = isinstance(layer, nn.Linear)  # or whole channels
            dropout = torch.dropout if units else torch.feature_dropout
            return (dropout(inputs[0], self.rate, layer.training), *inputs[1:])

        handles = [layer.register_forward_pre_hook(drop) for layer in self.layers.values()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def draw(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return the weights of a function: without an input is with weights of 0 for it."""
        weights = {}
        for name, layer in self.layers.items():
            weight = layer.weight
            groups = getattr(layer, "groups", 1)
            shape = (groups, 1, weight.shape[1], *(1 for _ in weight.shape[2:]))
            random = torch.rand(shape, generator=generator, device=weight.device)
            kept = (random >= self.rate).to(weight.dtype) / (1 - self.rate)
            weights[join(name, "weight")] = (weight.unflatten(0, (groups, -1)) * kept).flatten(0, 1)
        return weights

    def functions(
        self, *, samples: int, chunk_size: int | None, generator: torch.Generator | None
    ) -> Callable[..., Tensor]:
        drawn = [self.draw(generator) for _ in range(samples)]

        def call(*inputs: Any, **keywords: Any) -> Tensor:
            outputs = (functional_call(self.net, weights, inputs, keywords) for weights in drawn)
            return torch.stack([tensor_of(output) for output in outputs])

        return call

    def describe(self) -> dict[str, Any]:
        return {"network": describe_network(self.net), "rate": self.rate}

    @classmethod
    def build(
        cls, given: Mapping[str, Any], make_net: Callable[[], nn.Module], likelihood: Likelihood
    ) -> Dropped:
        return cls(make_net(), likelihood, given["rate"])


def inner_layers(net: nn.Module) -> dict[str, Layer]:
    """Return all linear and convolutional layers but the first, by name.

    Those within torch's attention are left out: it uses their weights without calling them.
    """
    inside = {
        id(child)
        for module in net.modules() if isinstance(module, nn.MultiheadAttention)
        for child in module.modules()
    }  # fmt: skip
    found = {
        name: layer for name, layer in net.named_modules()
        if isinstance(layer, Layer) and id(layer) not in inside
    }  # fmt: skip
    if len(found) < 2:
        raise ValueError("MCDropout: the network has no inner layer whose inputs could be dropped.")
    return dict(list(found.items())[1:])
