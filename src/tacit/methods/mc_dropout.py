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
from tacit.data.batches import Batch, Batches
from tacit.inference.calibration import calibrate
from tacit.inference.functions import Predictor, tensor_of
from tacit.inference.headers import describe_network
from tacit.likelihood import DiscreteLikelihood, Likelihood
from tacit.methods.base import Method
from tacit.methods.task import Task
from tacit.metrics.arguments import between_0_and_1

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

    Examples:
        >>> import tacit
        >>> train, validation, test = tacit.data.digits()
        >>> make_net = lambda: tacit.models.MLP(64, [32], 10)
        >>> predictor = MCDropout(rate=0.2).fit(make_net, train, validation, epochs=5, lr=0.1)
        >>> prediction = tacit.predict(predictor, test[0], samples=8)  # 8 masks
        >>> bool(prediction.mutual_information.mean() > 0.01)
        True
    """

    rate: float = 0.1
    calibrated: bool = False

    def __post_init__(self) -> None:
        # A Python number, which a file can hold.
        object.__setattr__(self, "rate", between_0_and_1("MCDropout(rate)", self.rate))

    def learn(self, task: Task) -> Dropped:
        net = task.net()
        predictor = Dropped(net, task.likelihood, self.rate)
        size = task.settings.get("batch_size", 128)
        check_order(task.net().eval(), next(Batches("train", task.train, size).epoch()))
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
            # Each layer has its own mask, even if its weight is tied to that of another.
            outputs = (
                functional_call(self.net, self.weights(masks), inputs, keywords, tie_weights=False)
                for masks in drawn
            )
            return torch.stack([tensor_of(output) for output in outputs])

        return call

    def mean_network(self) -> nn.Module:
        return self.net

    def describe(self) -> dict[str, Any]:
        return {"network": describe_network(self.net), "rate": self.rate}

    @classmethod
    def build(
        cls, given: Mapping[str, Any], make_net: Callable[[], nn.Module], likelihood: Likelihood
    ) -> Dropped:
        return cls(make_net(), likelihood, given["rate"])


@torch.no_grad()
def check_order(net: nn.Module, batch: Batch) -> None:
    """Raise ValueError if the layer that is called first is not the first of the network.

    Its inputs are the data, which would be dropped.

    Args:
        net: The network, in eval mode.
        batch: Some inputs.
    """
    called: list[str] = []
    inner = inner_layers(net)
    handles = [
        layer.register_forward_pre_hook(lambda _layer, _args, name=name: called.append(name))
        for name, layer in linear_layers(net).items()
    ]
    try:
        batch.call(net, next(net.parameters(), torch.zeros(())))
    finally:
        for handle in handles:
            handle.remove()
    if called and called[0] in inner:
        first = next(iter(linear_layers(net)))
        raise ValueError(
            f"MCDropout: expected the layers in the order of their calls; {called[0]!r} is called "
            f"first, but {first!r} is defined before it. Define {called[0]!r} first."
        )


def inner_layers(net: nn.Module) -> dict[str, Layer]:
    """Return all linear and convolutional layers but the first, by name."""
    found = linear_layers(net)
    if len(found) < 2:
        raise ValueError("MCDropout: the network has no inner layer whose inputs could be dropped.")
    return dict(list(found.items())[1:])


def linear_layers(net: nn.Module) -> dict[str, Layer]:
    """Return all linear and convolutional layers by name, in the order of their definition.

    Layers within nn.MultiheadAttention are excluded: it uses their weights without calling them.
    """
    inside = {
        id(child)
        for module in net.modules() if isinstance(module, nn.MultiheadAttention)
        for child in module.modules()
    }  # fmt: skip
    return {
        name: layer for name, layer in net.named_modules()
        if isinstance(layer, Layer) and id(layer) not in inside
    }  # fmt: skip
