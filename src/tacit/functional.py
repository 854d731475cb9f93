"""Calling a module with other weights than its own: one set, or many stacked ones at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _NormBase

from tacit._names import join
from tacit._tree import map_tensors, tensors_in, with_tensors

Weights: TypeAlias = Mapping[str, Tensor]
"""Parameters' names in the module -> tensors that take their place, perhaps stacked."""

Inputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a module's forward."""


@dataclass
class Caller:
    """Calls a module with weights in place of its own.

    Many sets of weights at once are vectorised with vmap where the module allows it: then only what
    depends on the weights is computed many times, and the layers in front of the first random one
    once. Otherwise they run in a loop, with the same result:

    - Norm layers that are updating running statistics: see `_in_loop`.
    - Modules that vmap can't run, such as those with `.item()` in forward. That is found out by
      trying, and remembered.

    Args:
        aliases: Name of a tied parameter -> its other names. Found once, by `tied_names`: to let
            `functional_call` look for ties costs a walk over all parameters in every call.
        vectorize: Whether to try vmap.
    """

    aliases: Mapping[str, tuple[str, ...]]
    vectorize: bool = True

    def one(self, module: nn.Module, weights: Weights, inputs: Inputs) -> Any:
        """Call the module with one set of weights."""
        args, kwargs = inputs
        replaced = dict(weights)
        for name, others in self.aliases.items():
            if name in weights:
                replaced.update(dict.fromkeys(others, weights[name]))
        return functional_call(module, replaced, args, kwargs, tie_weights=False)

    def many(
        self, module: nn.Module, weights: Weights, inputs: Inputs, *, cut: bool = False
    ) -> Any:
        """Call the module with M sets of weights and stack the M outputs.

        Args:
            module: The module to call.
            weights: Stacked weights, (M, *shape) each.
            inputs: The arguments: the same for all sets of weights.
            cut: The tensors of the arguments have a leading dimension M too, one slice for each set
                of weights. Tensors without dimensions are the same for all.
        """
        if not self.vectorize or _tracked_statistics(module):
            return self._in_loop(module, weights, inputs, cut)
        try:
            return self._vectorized(module, weights, inputs, cut)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError):
            # Either vmap can't run this module, or the call itself is wrong; then the loop raises
            # the module's own error.
            output = self._in_loop(module, weights, inputs, cut)
            self.vectorize = False
            return output

    def _vectorized(self, module: nn.Module, weights: Weights, inputs: Inputs, cut: bool) -> Any:
        tensors = tensors_in(inputs)
        structure: Any = None

        def call_flat(weights: Weights, *tensors: Tensor) -> tuple[Tensor, ...]:
            # vmap takes and returns flat tensors only; what holds them is kept outside.
            nonlocal structure
            structure = self.one(module, weights, with_tensors(inputs, tensors))
            return tuple(tensors_in(structure))

        cuts = [0 if cut and tensor.ndim else None for tensor in tensors]
        vectorized = vmap(call_flat, in_dims=(0, *cuts), randomness="different")
        with nullcontext() if torch.compiler.is_compiling() else _no_fallback_warnings():
            outputs = vectorized(dict(weights), *tensors)
        return with_tensors(structure, outputs)

    def _in_loop(self, module: nn.Module, weights: Weights, inputs: Inputs, cut: bool) -> Any:
        """Call the module once for each set of weights.

        Running statistics take one step for all, not M: each of the M calls starts from the same
        statistics, and afterwards they are the mean over the calls.
        """
        before = _tracked_statistics(module)
        outputs, after = [], []
        for m in range(len(next(iter(weights.values())))):
            statistics = {name: buffer.clone() for name, buffer in before.items()}
            one = {name: stacked[m] for name, stacked in weights.items()}
            piece = _slice(inputs, m) if cut else inputs
            outputs.append(self.one(module, one | statistics, piece))
            after.append(statistics)
        for name, buffer in before.items():
            stacked = torch.stack([statistics[name] for statistics in after])
            buffer.copy_(stacked.mean(0) if stacked.is_floating_point() else stacked[0])
        return _join(torch.stack, outputs)


def tied_names(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the names of parameters that have several -> the other names of each."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {
        name: tuple(other for other in same if other != name)
        for same in names.values()
        if len(same) > 1
        for name in same
    }


def concatenate(outputs: list[Any]) -> Any:
    """Join outputs of the same structure along the first dimension of their tensors."""
    return outputs[0] if len(outputs) == 1 else _join(torch.cat, outputs)


def _join(function: Any, outputs: list[Any]) -> Any:
    columns: Iterable[tuple[Tensor, ...]] = zip(*map(tensors_in, outputs), strict=True)
    return with_tensors(outputs[0], [function(column) for column in columns])


def _slice(inputs: Inputs, m: int) -> Inputs:
    sliced: Inputs = map_tensors(lambda tensor: tensor[m] if tensor.ndim else tensor, inputs)
    return sliced


def _tracked_statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of the norm layers that update running statistics now, by name."""
    return {
        join(name, key): buffer
        for name, layer in module.named_modules()
        if isinstance(layer, _NormBase) and layer.training and layer.track_running_stats
        for key, buffer in layer.named_buffers(recurse=False)
    }


@contextmanager
def _no_fallback_warnings() -> Iterator[None]:
    """Silence vmap where it has no batching rule: it loops over that one operator (attention)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield
