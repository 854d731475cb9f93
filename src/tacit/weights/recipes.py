"""Recipes: which layers of a module become random if nobody names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor, nn

from tacit._support.names import join
from tacit.weights.covariance import Covariance, LowRank, parameter_count
from tacit.weights.layers import Layers, layers_of

Chosen: TypeAlias = Mapping[str, Covariance]
"""Names or globs of layers -> their covariances."""

Recipe: TypeAlias = Callable[[nn.Module], Chosen]
"""From a module to the layers that become random."""

RANK = 10  # of layers that are chosen by name, and of the first in the paper's recipe
LAST_RANK = 20  # of the last layer in the paper's recipe
# Of all layers together, where each adds its noise to that of the others: benchmarks/choices.py.
EVERY_RANK, EVERY_SCALE = 3, 0.25


def every_layer(module: nn.Module, rank: int = EVERY_RANK, scale: float = EVERY_SCALE) -> Chosen:
    """Return low-rank covariances for all layers with a weight matrix: what `where=None` means.

    At a quarter of the usual scale, since each layer adds its noise to that of the others. Norm
    layers, embeddings and what is tied to them are left as they are. The factors have `rank` times
    as many numbers as the weights; of so few directions take several draws in a step, as
    `tacit.fit` does, or training is noisy.

    Args:
        module: The module whose layers are chosen.
        rank: Of each; at most the number of the layer's parameters.
        scale: Initial standard deviation of a weight, relative to its parametrization's.

    Examples:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> every_layer(net)
        {'0': LowRank(rank=3, scale=0.25), '2': LowRank(rank=3, scale=0.25)}
    """
    layers = layers_of(module)
    return {
        name: replace(_at_most(rank, layers[name]), scale=scale)
        for name in _weighted(module, layers)
    }


def first_and_last(module: nn.Module) -> Chosen:
    """Return the paper's recipe: rank 10 in the first layer, 20 in the last, at full scale.

    By position in the module, among the layers with a weight matrix.

    Args:
        module: The module whose layers are chosen.

    Examples:
        >>> import tacit
        >>> model = tacit.variational(tacit.models.LeNet5(), tacit.first_and_last)
    """
    layers = layers_of(module)
    names = _weighted(module, layers)
    first, last = names[0], names[-1]
    tied = set(map(id, layers[first].values())) & set(map(id, layers[last].values()))
    last_rank = RANK if tied and first != last else LAST_RANK
    return {first: _at_most(RANK, layers[first]), last: _at_most(last_rank, layers[last])}


def _weighted(module: nn.Module, layers: Layers) -> list[str]:
    """Return the layers with a weight matrix, in the module's order; all if none has one.

    Embeddings and what is tied to them are left out: their factors would multiply the size of a
    language model.
    """
    embeddings = {
        id(layer.weight)
        for layer in module.modules()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    }
    return [
        name
        for name, own in layers.items()
        if any(
            "weight" in join(name, tensor) and value.ndim > 1 and id(value) not in embeddings
            for tensor, value in own.items()
        )
    ] or list(layers)


def _at_most(rank: int, own: Mapping[str, Tensor]) -> LowRank:
    shapes = {name: value.shape for name, value in own.items()}
    return LowRank(min(rank, parameter_count(shapes)))
