"""Features of a network: the inputs or outputs of one of its layers, averaged over positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support.trees import tensors_in
from tacit.calling import Variational
from tacit.data.batches import Batch
from tacit.inference.functions import Predictor, eval_mode, tensor_of

LARGEST = 2**14  # features, whose covariance matrix takes 2 GB


def mean_network(model: nn.Module) -> tuple[nn.Module, Callable[..., Any]]:
    """Return the network of a model, and a function that calls it with the mean weights."""
    own = model.mean_network() if isinstance(model, Predictor) else model
    if not isinstance(own, Variational):
        return own, own
    return own.module, lambda *args, **kwargs: own.module(*own.prepared(args), **kwargs)


@contextmanager
def features_at(model: nn.Module, layer: str, inputs: bool) -> Iterator[Callable[[Batch], Tensor]]:
    """Observe a layer of a model: a function from a batch to features (B, F), in double precision.

    Inside the context the model is in eval mode and gradients are off.

    Args:
        model: The model.
        layer: Name of the layer in its network.
        inputs: Whether to observe the inputs of the layer, instead of its outputs.

    Raises:
        ValueError: If there is no such layer, or it is not called once per forward pass.
    """
    (net, call), seen = mean_network(model), list[Tensor]()
    module = dict(net.named_modules()).get(layer)
    if module is None:
        raise ValueError(f"layer: there is no layer {layer!r}. Layers: {_names(net)}.")

    def observe(_: nn.Module, args: Any, keywords: Any, output: Any) -> None:
        value = next(iter((*args, *keywords.values())), None) if inputs else output
        # Copied and averaged at once: a layer after it may change its output in place.
        seen.append(_averaged(value, layer, module))

    def features(batch: Batch) -> Tensor:
        seen.clear()
        batch.call(call, next(net.parameters(), torch.zeros(())))
        if len(seen) != 1:
            raise ValueError(
                f"layer: {layer!r} is called {len(seen)} times in a forward pass; choose one that "
                "is called once."
            )
        examples = len(tensors_in(batch.inputs)[0])
        if len(seen[0]) != examples:
            raise ValueError(
                f"layer: expected features of {examples} examples in the first dimension at "
                f"{layer!r}, received {len(seen[0])}; choose another layer."
            )
        return seen[0]

    handle = module.register_forward_hook(observe, with_kwargs=True)
    try:
        with eval_mode(model):
            yield features
    finally:
        handle.remove()


def _averaged(value: Any, layer: str, module: nn.Module) -> Tensor:
    """Return a copy of features, averaged over positions, (B, F)."""
    if not isinstance(value, Tensor) or not value.ndim:
        kind = type(value).__name__
        raise ValueError(f"layer: expected tensors with a batch at {layer!r}, received {kind}.")
    found = value[:, None] if value.ndim == 1 else value
    if found.ndim > 2:
        dims = range(1, found.ndim - 1) if _channels_last(module, found) else range(2, found.ndim)
        found = found.mean(tuple(dims), dtype=torch.promote_types(found.dtype, torch.float32))
    if found.shape[1] > LARGEST:
        raise ValueError(
            f"layer: {layer!r} has {found.shape[1]} features, whose covariance would take "
            f"{8 * found.shape[1] ** 2 / 2**30:.0f} GB; expected at most {LARGEST}. Choose another."
        )
    return found.detach().to("cpu", torch.float64, copy=True)


def _channels_last(module: nn.Module, features: Tensor) -> bool:
    """Return whether the last dimension is that of the features, not the second."""
    if isinstance(module, nn.Linear | nn.LayerNorm):
        return True
    return features.ndim == 3 and not isinstance(module, nn.Conv1d | nn.BatchNorm1d)


def output_layer(model: nn.Module, batch: Batch) -> str:
    """Return the name of the linear layer whose output is the network's output.

    Raises:
        ValueError: If there is none, or it is called several times.
    """
    (net, call), seen = mean_network(model), list[tuple[str, Tensor]]()
    handles = [
        each.register_forward_hook(lambda _, __, out, name=name: seen.append((name, out)))
        for name, each in net.named_modules()
        if isinstance(each, nn.Linear)
    ]
    try:
        with eval_mode(model):
            output = tensor_of(batch.call(call, next(net.parameters(), torch.zeros(()))))
    finally:
        for handle in handles:
            handle.remove()
    called = [name for name, _ in seen]
    # The same memory: the network may have dropped a dimension of 1.
    found = [name for name, out in seen if out.data_ptr() == output.data_ptr()]
    if len(found) != 1 or called.count(found[0]) != 1:
        raise ValueError(
            "layer: expected a network whose output is that of one linear layer, called once. Name "
            f"the layer whose outputs are the features: {_names(net)}."
        )
    return found[0]


def _names(net: nn.Module) -> str:
    """Return the names of the layers without layers of their own."""
    leaves = (name for name, layer in net.named_modules() if not any(layer.children()))
    return ", ".join(name or "'' (the network)" for name in leaves)
