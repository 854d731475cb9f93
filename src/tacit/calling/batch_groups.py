"""Several draws per batch: the batch is split into groups, each with its own weights.

Where possible the whole batch runs through the module in one ordinary pass. Random weights then
carry a leading group dimension; a linear layer or 2-D convolution that receives them applies to
each group its own weights. All other operations, such as pooling, run on the whole batch as fast as
in a plain network, which they don't under vmap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._support.private_torch import transforms_active
from tacit._support.trees import concatenate, map_tensors, tensors_in
from tacit.calling.caller import (
    Caller,
    Inputs,
    Weights,
    has_batch_norm,
)
from tacit.calling.trial import PROPERTIES, agree, trial
from tacit.calling.usage import WeightUseError


def call_in_groups(
    caller: Caller, module: nn.Module, weights: Weights, inputs: Inputs, size: int
) -> Any:
    """Call the module on a batch split into K contiguous groups, each with its own weights.

    Group sizes differ by at most one. Groups of equal size run in one stacked call, so at most two
    calls are needed. The output is in the order of the batch.

    Args:
        caller: Calls the module.
        module: The module to call.
        weights: K sets of weights, (K, *shape) each.
        inputs: The module's arguments, with B examples.
        size: The batch size B, at least K.
    """
    rows, larger = divmod(size, len(next(iter(weights.values()))))
    sizes = ([rows + 1] if larger else []) + [rows]

    def stacked_calls() -> Any:
        by_size = _groups_by_size(weights, inputs, larger, rows)
        outputs = caller.call_stacked(module, by_size, stacked_inputs=True)
        return concatenate([_merge(o, n) for o, n in zip(outputs, sizes, strict=True)])

    try:
        return call_grouped(caller, module, weights, inputs, size, fallback=stacked_calls)
    except (torch.OutOfMemoryError, WeightUseError):
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        if torch.compiler.is_compiling() or not _runs_on_the_whole_batch(caller, module, inputs):
            raise  # the call itself is wrong
        raise ValueError(
            f"draws: the module runs on the whole batch of {size} but not on groups of {rows}: "
            f"{str(error).partition(chr(10))[0]} The first dimension of every tensor must be the "
            "batch, and examples independent; for a single example or a whole graph use draws=1."
        ) from error


def _runs_on_the_whole_batch(caller: Caller, module: nn.Module, inputs: Inputs) -> bool:
    """Return whether the module runs on a batch that is not split."""
    try:
        with trial(module):
            caller.call(module, {}, inputs)
    except Exception:
        return False
    return True


def _groups_by_size(
    weights: Weights, inputs: Inputs, larger: int, rows: int
) -> Iterator[tuple[Weights, Inputs]]:
    """Yield the first `larger` groups, of rows + 1 examples each, then the others, of `rows`."""
    split = larger * (rows + 1)
    if larger:
        first = {name: stacked[:larger] for name, stacked in weights.items()}
        yield first, _stack_groups(inputs, slice(None, split), rows + 1)
    rest = {name: stacked[larger:] for name, stacked in weights.items()}
    yield rest, _stack_groups(inputs, slice(split, None), rows)


def _stack_groups(inputs: Inputs, part: slice, rows: int) -> Inputs:
    """Return part of the batch as groups of `rows` examples: (groups, rows, ...) per tensor."""

    def split(tensor: Tensor) -> Tensor:
        if not tensor.ndim:
            return tensor
        return tensor[part].reshape(-1, rows, *tensor.shape[1:])

    stacked: Inputs = map_tensors(split, inputs)
    return stacked


def _merge(output: Any, rows: int) -> Any:
    """Return outputs of stacked groups as those of one batch."""

    def merge(tensor: Tensor) -> Tensor:
        if tensor.ndim < 2 or tensor.shape[1] != rows:
            raise ValueError(
                "draws: expected outputs whose first dimension is the batch; for a group of "
                f"{rows} examples the module returned the shape {tuple(tensor.shape[1:])}. Compute "
                "a loss outside the module, or use draws=1."
            )
        return tensor.flatten(0, 1)

    return map_tensors(merge, output)


class CannotGroupError(RuntimeError):
    """A random tensor is used by an operation without a rule for groups."""


class Grouped(Tensor):
    """Weights with a leading dimension K: one set per group of consecutive examples."""

    channels_last: bool
    examples: int

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in PROPERTIES:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        if func not in RULES:
            raise CannotGroupError(f"{getattr(func, '__name__', func)} of random weights")
        return RULES[func](*args, **(kwargs or {}))


def grouped(stacked: Tensor, mean: Tensor, size: int) -> Grouped:
    """Return sampled weights as the weights of K groups.

    Args:
        stacked: One set of weights per group, (K, *shape).
        mean: The parameter that they replace.
        size: The batch size.
    """
    weights = stacked.as_subclass(Grouped)
    weights.examples = size
    weights.channels_last = mean.ndim == 4 and mean.stride(1) == 1 and mean[0, 0].numel() > 1
    return weights


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    groups = _group_count(x, weight, bias)
    rows = x.reshape(groups, -1, x.shape[-1])
    weight = _plain(weight)
    weight = weight if weight.ndim == 3 else weight.expand(groups, -1, -1)
    # Forward and backward take half the time of rows @ weight.mT.
    outputs = (weight @ rows.mT).mT
    if bias is not None:
        bias = _plain(bias)[:, None] if isinstance(bias, Grouped) else bias
        outputs = outputs + bias.to(outputs.dtype)  # the dtypes differ under autocast
    return outputs.reshape(*x.shape[:-1], -1)


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    count = _group_count(x, weight, bias)
    if x.ndim != 4 or not isinstance(weight, Grouped):
        raise CannotGroupError("a convolution without a batch, or with a random bias only")
    memory_format = torch.channels_last if weight.channels_last else torch.contiguous_format
    filters = [w.contiguous(memory_format=memory_format) for w in _plain(weight).unbind()]
    biases = _plain(bias).unbind() if isinstance(bias, Grouped) else [bias] * count
    # A loop: one convolution with groups of channels takes twice as long, and four times as long
    # with three channels. (In channels-last format it makes LeNet-5 4 % faster, but narrow ResNets
    # 10 to 20 % slower.)
    outputs = [
        F.conv2d(part, own, own_bias, stride, padding, dilation, groups)
        for part, own, own_bias in zip(x.chunk(count), filters, biases, strict=True)
    ]
    return torch.cat(outputs)


RULES: Mapping[Callable[..., Any], Callable[..., Tensor]] = {F.linear: _linear, F.conv2d: _conv2d}


def _group_count(x: Tensor, *weights: Tensor | None) -> int:
    grouped = next(weight for weight in weights if isinstance(weight, Grouped))
    if isinstance(x, Grouped) or not x.ndim or x.shape[0] != grouped.examples:
        raise CannotGroupError("an input whose first dimension is not the batch")
    return len(_plain(grouped))


def _plain(weight: Tensor) -> Tensor:
    return weight.as_subclass(Tensor) if isinstance(weight, Grouped) else weight


def call_grouped(
    caller: Caller,
    module: nn.Module,
    weights: Weights,
    inputs: Inputs,
    size: int,
    fallback: Callable[[], Any],
) -> Any:
    """Call a module on all groups in one pass where that gives the outputs of the fallback.

    Whether it does is tested in the first call, separately for train and eval mode.

    Args:
        caller: Calls the module, and remembers the result of the test.
        module: The module to call.
        weights: K sets of weights, (K, *shape) each.
        inputs: The module's arguments: `size` examples in K consecutive groups.
        size: The batch size.
        fallback: Returns the correct output for any module, under vmap or in a loop.
    """
    mode = module.training
    if not caller.groupable.get(mode, True) or _inapplicable(module, weights, size):
        return fallback()
    if mode not in caller.groupable:
        with trial(module):
            expected = fallback()
            agreed = agree(_call_in_one_pass(caller, module, weights, inputs, size), expected)
        if agreed is None:
            return fallback()
        caller.groupable[mode] = agreed
    output = None
    if caller.groupable[mode]:
        output = _call_in_one_pass(caller, module, weights, inputs, size)
    if output is None:
        output = fallback()  # raises the module's own error if the call itself is wrong
        caller.groupable[mode] = False
    return output


def _call_in_one_pass(
    caller: Caller, module: nn.Module, weights: Weights, inputs: Inputs, size: int
) -> Any:
    """Return the output for the whole batch, or None if it can't be computed in one pass."""
    means = {name: module.get_parameter(name) for name in weights}
    by_group = {n: grouped(stacked, means[n], size) for n, stacked in weights.items()}
    try:
        output = caller.call(module, by_group, inputs)
    except (torch.OutOfMemoryError, WeightUseError):
        raise
    except (RuntimeError, TypeError):
        return None
    batch_first = all(tensor.ndim and len(tensor) == size for tensor in tensors_in(output))
    return output if batch_first else None


def _inapplicable(module: nn.Module, weights: Weights, size: int) -> bool:
    """Return whether groups are uneven, batch norm couples them, or the call is transformed."""
    return (
        size % len(next(iter(weights.values()))) != 0
        or torch.compiler.is_compiling()
        or transforms_active()
        or has_batch_norm(module)
    )
