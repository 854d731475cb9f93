"""Dropout kept active at prediction time (Gal and Ghahramani, 2016)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit._support.names import join
from tacit.inference.calibration import calibrate
from tacit.inference.functions import Predictor, tensor_of
from tacit.inference.headers import describe_network
from tacit.likelihood import DiscreteLikelihood, Likelihood
from tacit.methods.base import Method
from tacit.methods.task import Task

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True)
class MCDropout(Method):
    """Dropout on the inputs of linear and convolutional layers, in training and prediction.

    Units, or whole channels, are dropped before every layer but the first, whose inputs are the
    data. Masks are drawn per example in training; in prediction each function has one mask for all
    inputs. Probabilities are averaged.

    Args:
        rate: Dropout probability.
        calibrated: Whether to set a temperature on the validation data, if there are any.
    """

    rate: float = 0.1
    calibrated: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(
                f"MCDropout(rate): expected a number between 0 and 1, received {self.rate!r}."
            )

    def learn(self, task: Task) -> Dropped:
        net = task.net()
        predictor = Dropped(net, task.likelihood, self.rate)
        with predictor.dropping():
            task.fit(net)
        task.average("probs")
        tunable = isinstance(task.likelihood, DiscreteLikelihood)
        if self.calibrated and tunable and task.validation is not None:
            calibrate(predictor, task.validation)
        return predictor


class Dropped(Predictor):
    """Predictor: functions of a network, each with its own dropout mask.

    Args:
        net: The network.
        likelihood: Likelihood of its outputs.
        rate: Dropout probability.
    """

    def __init__(self, net: nn.Module, likelihood: Likelihood, rate: float) -> None:
        super().__init__(likelihood)
        self.net, self.rate = net, rate
        self.layers = inner_layers(net)

    @contextmanager
    def dropping(self) -> Iterator[None]:
        """Apply dropout to the inputs of the layers in train mode, with a mask per example."""

        def drop(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            linear = isinstance(layer, nn.Linear)
            dropout = torch.dropout if linear else torch.feature_dropout
            return (dropout(inputs[0], self.rate, layer.training), *inputs[1:])

        handles = [layer.register_forward_pre_hook(drop) for layer in self.layers.values()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def draw(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return the masks of a function by layer: which inputs are kept, (groups, 1, inputs, ...).

        Masks are far smaller than weights: many functions can be stored.
        """
        masks = {}
        for name, layer in self.layers.items():
            weight = layer.weight
            groups = getattr(layer, "groups", 1)
            shape = (groups, 1, weight.shape[1], *(1 for _ in weight.shape[2:]))
            random = torch.rand(shape, generator=generator, device=weight.device)
            masks[name] = random >= self.rate
        return masks

    def weights(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a function by name: zero weights stand for dropped inputs."""
        found = {}
        for name, mask in masks.items():
            weight = self.layers[name].weight
            kept = mask.to(weight.dtype) / (1 - self.rate)
            grouped = weight.unflatten(0, (len(mask), -1))
            found[join(name, "weight")] = (grouped * kept).flatten(0, 1)
        return found

    def functions(
        self, *, samples: int, chunk_size: int | None, generator: torch.Generator | None
    ) -> Callable[..., Tensor]:
        drawn = [self.draw(generator) for _ in range(samples)]

        def call(*inputs: Any, **keywords: Any) -> Tensor:
            outputs = (
                functional_call(self.net, self.weights(masks), inputs, keywords) for masks in drawn
            )
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

    Layers within nn.MultiheadAttention are excluded: it uses their weights without calling them.
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
