"""Calling a module with other weights than its own: one set, or many stacked ones at once."""

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
"""Parameters' names in the module -> tensors that take their place, perhaps stacked."""

Inputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a module's forward."""

SAMPLED_IMAGES = 1024  # functions times images at a time, where convolutions come first,
FEW_IMAGES = 32  # and from how many images on one function at a time is faster
MEMORY = 2**28  # bytes that a layer's output for all functions at a time may have


@dataclass
class Caller:
    """Calls a module with weights in place of its own.

    Many sets of weights at once are vectorised with vmap where the module allows it: then only what
    depends on the weights is computed many times, and the layers in front of the first random one
    once. A module that vmap can't run, such as one with `.item()` in forward, runs in a loop with
    the same result. That is found out by trying, and remembered for the same kind of call.

    Args:
        aliases: Name of a tied parameter -> its names in other layers, from `tied_names`. To look
            for ties in every call would be to walk over all parameters.
        obstacles: Why a kind of call runs in a loop: (cut, train mode) -> reason.
        groupable: Whether one pass serves all groups (see `grouped_weights`), by train mode.
        outputs: Shapes of inputs -> bytes of the largest output that depends on the weights.
    """

    aliases: Mapping[str, tuple[str, ...]]
    obstacles: dict[tuple[bool, bool], str] = field(default_factory=dict)
    groupable: dict[bool, bool] = field(default_factory=dict)
    outputs: dict[tuple[tuple[int, ...], ...], int] = field(default_factory=dict)

    def one(self, module: nn.Module, weights: Weights, inputs: Inputs) -> Any:
        """Call the module with one set of weights."""
        args, kwargs = inputs
        replaced = dict(weights)
        for name, others in self.aliases.items():
            if name in weights:
                replaced.update(dict.fromkeys(others, weights[name]))
        if torch.compiler.is_compiling():
            return functional_call(module, replaced, args, kwargs, tie_weights=False)
        places = _places(module, replaced)
        before = [own[name] for own, name in places]
        try:
            for (own, name), tensor in zip(places, replaced.values(), strict=True):
                own[name] = tensor
            return module(*args, **kwargs)
        finally:
            for (own, name), tensor in zip(places, before, strict=True):
                own[name] = tensor

    def many(
        self, module: nn.Module, pieces: Iterable[tuple[Weights, Inputs]], *, cut: bool = False
    ) -> list[Any]:
        """Call the module with M sets of weights for each piece and stack the M outputs.

        Running statistics of norm layers take one step for all pieces together: every set of
        weights starts from the same statistics, and afterwards they are the mean over the sets.

        Args:
            module: The module to call.
            pieces: Pairs of stacked weights, (M, *shape) each, and arguments. M may differ.
            cut: The tensors of the arguments have a leading dimension M too, one slice for each set
                of weights. Tensors without dimensions are the same for all.

        Returns:
            For each piece the module's output with a leading dimension M in every tensor.
        """
        before, after, outputs = tracked_statistics(module), [], []
        for weights, inputs in pieces:
            output, statistics = self._piece(module, weights, before, inputs, cut)
            outputs.append(output)
            after.append(statistics)
        for name, buffer in before.items():
            stacked = torch.cat([statistics[name] for statistics in after])
            buffer.copy_(stacked.mean(0) if stacked.is_floating_point() else stacked[0])
        return outputs

    def best_chunk(self, module: nn.Module, random: Collection[str], inputs: Inputs) -> int | None:
        """Return how many functions to run at a time; None for all at once.

        All at once, layers before the first random one run once for all functions. If the very
        first is random nothing is shared, and convolutions of many functions at once are slow on a
        CPU: with all layers of a narrow ResNet-18 random, 32 functions take a third of the time one
        by one, and a training step of LeNet-5 with 64 half of it. Otherwise, without gradients, as
        many as keep the largest output from the first random layer on within `MEMORY`.

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
            return 1 if size >= FEW_IMAGES else SAMPLED_IMAGES // max(1, size)
        if torch.is_grad_enabled() or any(part.training for part in module.modules()):
            return None  # to try it out would change running statistics, or draw random numbers
        if shapes not in self.outputs:
            self.outputs[shapes] = _largest_output(module, random, inputs)
        return max(1, MEMORY // self.outputs[shapes])

    def _piece(
        self, module: nn.Module, weights: Weights, before: Weights, inputs: Inputs, cut: bool
    ) -> tuple[Any, Weights]:
        statistics = _repeat(before, weights)
        kind = (cut, module.training)
        if kind not in self.obstacles and (cut or _count(weights) > 1):
            try:
                return self._vectorized(module, {**weights, **statistics}, inputs, cut), statistics
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, TypeError) as error:
                # Either vmap can't run this module, or the call itself is wrong; then the loop
                # raises the module's own error.
                statistics = _repeat(before, weights)
                output = self._in_loop(module, {**weights, **statistics}, inputs, cut)
                self.obstacles[kind] = str(error).partition("\n")[0]
                return output, statistics
        return self._in_loop(module, {**weights, **statistics}, inputs, cut), statistics

    def _vectorized(self, module: nn.Module, state: Weights, inputs: Inputs, cut: bool) -> Any:
        tensors = tensors_in(inputs) if cut else []
        structure: Any = None

        def call_flat(state: Weights, *tensors: Tensor) -> tuple[Tensor, ...]:
            # vmap takes and returns flat tensors only; what holds them is kept outside.
            nonlocal structure
            structure = self.one(module, state, with_tensors(inputs, tensors) if cut else inputs)
            return tuple(tensors_in(structure))

        dims = (0, *(0 if tensor.ndim else None for tensor in tensors))
        vectorized = vmap(call_flat, in_dims=dims, randomness="different")
        quiet = nullcontext() if torch.compiler.is_dynamo_compiling() else _no_fallback_warnings()
        with quiet, _buffers_stay(module):
            outputs = vectorized(dict(state), *tensors)
        check_stackable(structure)
        return with_tensors(structure, outputs)

    def _in_loop(self, module: nn.Module, state: Weights, inputs: Inputs, cut: bool) -> Any:
        outputs = []
        for m in range(_count(state)):
            one = {name: stacked[m] for name, stacked in state.items()}
            outputs.append(self.one(module, one, _slice(inputs, m) if cut else inputs))
        return stack(outputs)


def _places(module: nn.Module, names: Iterable[str]) -> list[tuple[dict[str, Any], str]]:
    """Return where a module keeps parameters and buffers: dictionaries and keys.

    To put tensors there is what `functional_call` does too; it takes 1 % of a training step of
    LeNet-5 for it.
    """
    found = []
    for name in names:
        layer, _, last = name.rpartition(".")
        owner = module.get_submodule(layer)
        found.append((owner._parameters if last in owner._parameters else owner._buffers, last))
    return found


def tied_names(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return each name of a tied parameter -> its names in the other layers that have it.

    One name for each layer: to replace a parameter of the same layer twice, under two names of the
    layer, would leave the first replacement in the layer when both are taken back.
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
    """Return the buffers of the norm layers that update running statistics now, by name."""
    return {
        join(name, key): buffer
        for name, layer in module.named_modules()
        if isinstance(layer, NormBase) and layer.training and layer.track_running_stats
        for key, buffer in layer.named_buffers(recurse=False)
    }


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether examples are normalised by the batch that they are in."""
    return any(isinstance(layer, BatchNorm) for layer in module.modules())


def _largest_output(module: nn.Module, random: Collection[str], inputs: Inputs) -> int:
    """Return the bytes of the largest output from the first random layer on, at least 1."""
    owners = {module.get_submodule(name.rpartition(".")[0]) for name in random}
    largest, reached = 1, False

    def note(layer: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal largest, reached
        reached = reached or layer in owners
        sizes = (tensor.numel() * tensor.element_size() for tensor in tensors_in(output))
        largest = max(largest, sum(sizes)) if reached else largest

    hooks = [layer.register_forward_hook(note) for layer in module.modules()]
    try:
        args, kwargs = inputs
        module(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return largest


def chunks(stacked: Weights, chunk_size: int | None) -> Iterator[dict[str, Tensor]]:
    """Yield stacked tensors in pieces of at most `chunk_size` along their first dimension."""
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
def _buffers_stay(module: nn.Module) -> Iterator[None]:
    """Put back buffers that forward replaced by batched tensors, and raise: then it must loop."""
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
    """Silence vmap where it has no batching rule: it loops over that one operator (attention)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield
