"""Call a module with replaced weights: one set of weights, or a stack of them at once."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from tacit._support import checks
from tacit._support.names import join
from tacit._support.private_torch import BatchNorm, NormBase
from tacit._support.trees import check_stackable, map_tensors, stack, tensors_in, with_tensors

Weights: TypeAlias = Mapping[str, Tensor]
"""Name of a parameter in the module -> the tensor that replaces it, possibly stacked."""

Inputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a module's forward."""

# Chunks of a module whose first layer is a random convolution, on a CPU.
IMAGES_PER_CHUNK = 1024  # functions times images
LARGE_BATCH = 32  # batch size from which one function at a time is faster
# Chunks of all other modules.
OUTPUT_BYTES = 2**28  # limit on one layer's output over all functions of a chunk


@dataclass
class Caller:
    """Calls a module with given weights in place of its own.

    A stack of M sets of weights is vectorised with vmap where the module allows it. Only
    operations that depend on the weights are then computed M times: the layers before the first
    random one run once. A module that vmap can't run, such as one with `.item()` in forward, runs
    in a loop with the same result. vmap's first failure is remembered for all calls of that kind.

    Args:
        aliases: Name of a tied parameter -> its names in other layers, from `tied_names`. Stored,
            because searching for tied parameters walks over the whole module.
        obstacles: Why a kind of call runs in a loop: (stacked inputs, train mode) -> reason.
        groupable: Train mode -> whether one pass serves all groups (see `grouped_weights`).
        outputs: Shapes of the inputs -> bytes of the largest output that depends on the weights.
    """

    aliases: Mapping[str, tuple[str, ...]]
    obstacles: dict[tuple[bool, bool], str] = field(default_factory=dict)
    groupable: dict[bool, bool] = field(default_factory=dict)
    outputs: dict[tuple[tuple[int, ...], ...], int] = field(default_factory=dict)

    def call(self, module: nn.Module, weights: Weights, inputs: Inputs) -> Any:
        """Call the module with one set of weights."""
        args, kwargs = inputs
        replaced = dict(weights)
        for name, others in self.aliases.items():
            if name in weights:
                replaced.update(dict.fromkeys(others, weights[name]))
        if torch.compiler.is_compiling():
            return functional_call(module, replaced, args, kwargs, tie_weights=False)
        slots = _slots(module, replaced)
        before = [tensors[name] for tensors, name in slots]
        try:
            for (tensors, name), tensor in zip(slots, replaced.values(), strict=True):
                tensors[name] = tensor
            return module(*args, **kwargs)
        finally:
            for (tensors, name), tensor in zip(slots, before, strict=True):
                tensors[name] = tensor

    def call_stacked(
        self,
        module: nn.Module,
        chunks: Iterable[tuple[Weights, Inputs]],
        *,
        stacked_inputs: bool = False,
    ) -> list[Any]:
        """Call the module with the M sets of weights of each chunk and stack the M outputs.

        Running statistics of norm layers take one step for all chunks together: every set of
        weights starts from the same statistics, and the result is the mean over all sets.

        Args:
            module: The module to call.
            chunks: Pairs of stacked weights, (M, *shape) each, and arguments. M may differ.
            stacked_inputs: Whether the tensors among the arguments have a leading dimension M too,
                one slice per set of weights. Scalar tensors are shared by all sets.

        Returns:
            For each chunk the module's output with a leading dimension M in every tensor.
        """
        before, after, outputs = tracked_statistics(module), [], []
        for weights, inputs in chunks:
            output, statistics = self._call_chunk(module, weights, before, inputs, stacked_inputs)
            outputs.append(output)
            after.append(statistics)
        for name, buffer in before.items():
            stacked = torch.cat([statistics[name] for statistics in after])
            buffer.copy_(stacked.mean(0) if stacked.is_floating_point() else stacked[0])
        return outputs

    def best_chunk(self, module: nn.Module, random: Collection[str], inputs: Inputs) -> int | None:
        """Return how many functions to run at a time; None for all at once.

        All at once, the layers before the first random one run only once. If the first layer is
        random nothing is shared, and vectorised convolutions are slow on a CPU: with all layers of
        a narrow ResNet-18 random, 32 functions take a third of the time one by one, and a training
        step of LeNet-5 with 64 takes half. Otherwise, without gradients, it is the largest chunk
        for which every output from the first random layer on fits into `OUTPUT_BYTES`.

        Args:
            module: The module to call.
            random: Names of its random parameters.
            inputs: Its arguments.
        """
        if torch.compiler.is_compiling():
            return None
        name, first = next(module.named_parameters())
        shapes = tuple(tuple(tensor.shape) for tensor in tensors_in(inputs))
        if name in random and first.ndim >= 3 and first.device.type == "cpu":
            size = max((shape[0] for shape in shapes if shape), default=1)
            return 1 if size >= LARGE_BATCH else IMAGES_PER_CHUNK // max(1, size)
        # Autograd keeps all outputs anyway; in train mode a trial run would change running
        # statistics or draw dropout masks.
        if torch.is_grad_enabled() or any(part.training for part in module.modules()):
            return None
        if shapes not in self.outputs:
            self.outputs[shapes] = _largest_output(module, random, inputs)
        return max(1, OUTPUT_BYTES // self.outputs[shapes])

    def _call_chunk(
        self,
        module: nn.Module,
        weights: Weights,
        before: Weights,
        inputs: Inputs,
        stacked_inputs: bool,
    ) -> tuple[Any, Weights]:
        """Return the stacked outputs and running statistics of one chunk."""
        statistics = _repeat(before, weights)
        state = {**weights, **statistics}
        kind = (stacked_inputs, module.training)
        if kind in self.obstacles or not (stacked_inputs or _count(weights) > 1):
            return self._loop(module, state, inputs, stacked_inputs), statistics
        try:
            return self._vectorized(module, state, inputs, stacked_inputs), statistics
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError) as error:
            # If the call itself is wrong, the loop raises the module's own error.
            statistics = _repeat(before, weights)
            output = self._loop(module, {**weights, **statistics}, inputs, stacked_inputs)
            self.obstacles[kind] = str(error).partition("\n")[0]
            return output, statistics

    def _vectorized(
        self, module: nn.Module, state: Weights, inputs: Inputs, stacked_inputs: bool
    ) -> Any:
        tensors = tensors_in(inputs) if stacked_inputs else []
        structure: Any = None

        def call_flat(state: Weights, *tensors: Tensor) -> tuple[Tensor, ...]:
            # vmap returns tensors only, so the output's containers leave through `structure`.
            nonlocal structure
            own_inputs = with_tensors(inputs, tensors) if stacked_inputs else inputs
            structure = self.call(module, state, own_inputs)
            return tuple(tensors_in(structure))

        dims = (0, *(0 if tensor.ndim else None for tensor in tensors))
        vectorized = vmap(call_flat, in_dims=dims, randomness="different")
        quiet = nullcontext() if torch.compiler.is_dynamo_compiling() else _no_fallback_warnings()
        with quiet, _buffers_not_replaced(module):
            outputs = vectorized(dict(state), *tensors)
        check_stackable(structure)
        return with_tensors(structure, outputs)

    def _loop(self, module: nn.Module, state: Weights, inputs: Inputs, stacked_inputs: bool) -> Any:
        outputs = []
        for m in range(_count(state)):
            one = {name: stacked[m] for name, stacked in state.items()}
            outputs.append(self.call(module, one, _slice(inputs, m) if stacked_inputs else inputs))
        return stack(outputs)


def _slots(module: nn.Module, names: Iterable[str]) -> list[tuple[dict[str, Any], str]]:
    """Return the dictionary and key under which each parameter or buffer is stored.

    `functional_call` replaces tensors there too, but its overhead is 1 % of a training step of
    LeNet-5.
    """
    found = []
    for name in names:
        layer, _, tensor = name.rpartition(".")
        owner = module.get_submodule(layer)
        found.append((owner._parameters if tensor in owner._parameters else owner._buffers, tensor))
    return found


def tied_names(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return for each name of a tied parameter its names in the other layers that share it.

    One name per layer: a parameter replaced twice, under two names of the same layer, would be
    restored to the first replacement instead of the original.
    """
    places: dict[int, dict[tuple[int, str], list[str]]] = {}
    for path, layer in module.named_modules(remove_duplicate=False):
        for tensor, parameter in layer.named_parameters(recurse=False):
            same_layer = places.setdefault(id(parameter), {}).setdefault((id(layer), tensor), [])
            same_layer.append(join(path, tensor))
    return {
        name: tuple(others[0] for other, others in layers.items() if other != place)
        for layers in places.values()
        if len(layers) > 1
        for place, names in layers.items()
        for name in names
    }


def tracked_statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of the norm layers that currently update running statistics, by name."""
    return {
        join(name, key): buffer
        for name, layer in module.named_modules()
        if isinstance(layer, NormBase) and layer.training and layer.track_running_stats
        for key, buffer in layer.named_buffers(recurse=False)
    }


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether the module has batch norm, which couples the examples of a batch."""
    return any(isinstance(layer, BatchNorm) for layer in module.modules())


def _largest_output(module: nn.Module, random: Collection[str], inputs: Inputs) -> int:
    """Return the bytes of the largest output from the first random layer on, at least 1."""
    owners = {module.get_submodule(name.rpartition(".")[0]) for name in random}
    largest, reached = 1, False

    def record(layer: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal largest, reached
        reached = reached or layer in owners
        sizes = (tensor.numel() * tensor.element_size() for tensor in tensors_in(output))
        largest = max(largest, sum(sizes)) if reached else largest

    hooks = [layer.register_forward_hook(record) for layer in module.modules()]
    try:
        args, kwargs = inputs
        module(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return largest


def in_chunks(stacked: Weights, chunk_size: int | None) -> Iterator[dict[str, Tensor]]:
    """Yield stacked tensors in chunks of at most `chunk_size` along their first dimension."""
    size = _count(stacked)
    step = size if chunk_size is None else checks.positive_integer("chunk_size", chunk_size)
    for start in range(0, size, step):
        yield {name: tensor[start : start + step] for name, tensor in stacked.items()}


def _count(stacked: Weights) -> int:
    return len(next(iter(stacked.values())))


def _repeat(buffers: Weights, weights: Weights) -> dict[str, Tensor]:
    size = _count(weights)
    return {name: value.expand(size, *value.shape).clone() for name, value in buffers.items()}


def _slice(inputs: Inputs, m: int) -> Inputs:
    sliced: Inputs = map_tensors(lambda tensor: tensor[m] if tensor.ndim else tensor, inputs)
    return sliced


@contextmanager
def _buffers_not_replaced(module: nn.Module) -> Iterator[None]:
    """Restore buffers that forward replaced by vmap's batched tensors, and raise RuntimeError."""
    before = dict(module.named_buffers())
    yield
    after = dict(module.named_buffers())
    replaced = [name for name, buffer in after.items() if before.get(name) is not buffer]
    for name in replaced:
        path, _, key = name.rpartition(".")
        setattr(module.get_submodule(path), key, before.get(name))
    if replaced:
        raise RuntimeError(f"forward replaces the buffer {replaced[0]!r}")


@contextmanager
def _no_fallback_warnings() -> Iterator[None]:
    """Silence vmap's warning that it loops over an operator without a batching rule (attention)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield
