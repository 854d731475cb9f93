"""Recipes: which layers of a module become random by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor, nn

from tacit._support import checks
from tacit._support.names import join
from tacit.weights.covariance import Covariance, LowRank, Relative, parameter_count
from tacit.weights.covariance.relative import SPEED
from tacit.weights.layers import Layers, layers_of

Chosen: TypeAlias = Mapping[str, Covariance]
"""Layer name or glob -> covariance."""

Recipe: TypeAlias = Callable[[nn.Module], Chosen]
"""A function from a module to the layers that become random."""

RANK = 10  # for layers chosen by name, and for the first layer in the paper's recipe
LAST_RANK = 20  # for the last layer in the paper's recipe
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
PROJECTIONS = (
    *(("query", "key", "value"), ("q_proj", "k_proj", "v_proj", "kv_proj"), ("wq", "wk", "wv")),
    *(("q_lin", "k_lin", "v_lin"), ("q", "k", "v", "kv"), ("to_q", "to_k", "to_v", "to_kv")),
)
"""Names of the layers that compute queries, keys and values of attention, side by side."""
FUSED_PROJECTIONS = {
    *("qkv", "to_qkv", "qkv_proj", "Wqkv", "wqkv", "query_key_value", "c_attn"),
}
"""Names of layers that compute all three."""

# For `relative_noise`: noise of all layers together, and the largest of one; see docs/benchmark.md.
TOTAL_RELATIVE, LARGEST_RELATIVE = 0.7, 0.35
REGRESSION_SCALE = 0.1  # of `relative_noise` by default if the likelihood is continuous
EVERY_RANK, EVERY_SCALE = 3, 0.25  # for `every_layer`, measured in benchmarks/choices.py


def every_layer(module: nn.Module, rank: int = EVERY_RANK, scale: float = EVERY_SCALE) -> Chosen:
    """Return low-rank covariances for all layers with a weight matrix.

    The scale is a quarter of the usual one, since the noise of all layers adds up. Norm layers,
    embeddings and parameters tied to embeddings stay deterministic, and so do frozen layers, unless
    all are frozen. The factors have `rank` times as many entries as the weights. With so few
    directions use several draws per step, as `tacit.fit` does; otherwise training is noisy.

    Args:
        module: The module whose layers are chosen.
        rank: Rank of each covariance, reduced to the number of the layer's parameters if that is
            smaller.
        scale: Initial standard deviation of a weight, relative to its parametrization's.

    Examples:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> every_layer(net)
        {'0': LowRank(rank=3, scale=0.25), '2': LowRank(rank=3, scale=0.25)}
    """
    layers, rank = layers_of(module), checks.positive_integer("rank", rank)
    return {
        name: replace(_at_most(rank, layers[name]), scale=scale)
        for name in _trained(weighted_layers(module, layers), layers)
    }


def relative_noise(module: nn.Module, scale: float | None = None, speed: float = SPEED) -> Chosen:
    """Return relative noise for all layers with a weight matrix but the first; the default.

    In train mode every example has its own draw, and no weights are formed. The first layer has no
    noise, unless an embedding precedes it: its inputs are the data, and a plain network computes no
    gradient for them. The queries, keys and values of attention have none either: with it, a small
    transformer has several times the NLL (docs/benchmark.md). They are recognised by type,
    `nn.MultiheadAttention`, or by their usual names. Frozen layers, such as those under adapters,
    have no noise, unless all are frozen. A module without weight matrices gets `every_layer`.

    The noise shrinks slowly, and more where it keeps the training loss high: with much data and few
    epochs, and in small networks. A classifier tolerates much of it. Regression with little noise
    in the targets does not: with a continuous likelihood `tacit.variational` sets `scale` to 0.1.
    The study in docs/benchmark.md compares scales and speeds.

    Args:
        module: The module whose layers are chosen.
        scale: Initial s of `Relative`; by default 0.7 L^-1/2 for L layers, at most 0.35, since the
            noise of all layers adds up.
        speed: Learning rate of s relative to the base learning rate.

    Examples:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> relative_noise(net)
        {'2': Relative(scale=0.35, speed=0.01, axis=None, groups=1)}
    """
    layers = layers_of(module)
    # A weight with several names, in a shared or tied layer, counts once, under the first of them.
    matrices: list[str] = []
    seen: set[int] = set()
    for name in weighted_layers(module, layers):
        own = {id(value) for value in layers[name].values() if value.ndim > 1}
        if own - seen:
            matrices.append(name)
            seen |= own
    if not matrices:
        return every_layer(module)
    embedded = any(isinstance(layer, EMBEDDINGS) for layer in module.modules())
    names = matrices if embedded else matrices[1:] or matrices
    names = [name for name in names if not _attends(module, name)] or names
    names = _trained(names, layers)
    if scale is None:
        scale = min(LARGEST_RELATIVE, TOTAL_RELATIVE * len(names) ** -0.5)
    return {name: Relative(scale, speed) for name in names}


def _attends(module: nn.Module, name: str) -> bool:
    """Return whether a layer computes queries, keys or values of attention."""
    parent, _, own = name.rpartition(".")
    if isinstance(module.get_submodule(name), nn.MultiheadAttention) or own in FUSED_PROJECTIONS:
        return True
    siblings = {child for child, _ in module.get_submodule(parent).named_children()}
    # A single one of these names may be anything, such as the value of an actor-critic network.
    return any(own in names and len(siblings & set(names)) > 1 for names in PROJECTIONS)


def first_and_last(module: nn.Module) -> Chosen:
    """Return the paper's recipe: rank 10 in the first layer, 20 in the last, at full scale.

    First and last are by position in the module, among the layers with a weight matrix.

    Args:
        module: The module whose layers are chosen.

    Examples:
        >>> import tacit
        >>> model = tacit.variational(tacit.models.LeNet5(), tacit.first_and_last)
    """
    layers = layers_of(module)
    names = weighted_layers(module, layers)
    first, last = names[0], names[-1]
    tied = set(map(id, layers[first].values())) & set(map(id, layers[last].values()))
    last_rank = RANK if tied and first != last else LAST_RANK
    return {first: _at_most(RANK, layers[first]), last: _at_most(last_rank, layers[last])}


def weighted_layers(module: nn.Module, layers: Layers) -> list[str]:
    """Return the layers with a weight matrix, in the module's order; all layers if none has one.

    Embeddings and parameters tied to them are left out: their factors would multiply the size of a
    language model.
    """
    embeddings = {id(layer.weight) for layer in module.modules() if isinstance(layer, EMBEDDINGS)}
    return [
        name
        for name, own in layers.items()
        if any(
            "weight" in join(name, tensor) and value.ndim > 1 and id(value) not in embeddings
            for tensor, value in own.items()
        )
    ] or list(layers)


def _trained(names: list[str], layers: Layers) -> list[str]:
    """Return the layers whose weight matrix is trained; all if none is."""
    return [
        name
        for name in names
        if any(value.requires_grad for value in layers[name].values() if value.ndim > 1)
    ] or names


def _at_most(rank: int, own: Mapping[str, Tensor]) -> LowRank:
    shapes = {name: value.shape for name, value in own.items()}
    return LowRank(min(rank, parameter_count(shapes)))
