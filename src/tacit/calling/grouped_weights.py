"""Several sets of weights in one ordinary pass: only random layers know of the groups.

The batch runs through the module as it is. Where a linear layer or a 2-D convolution meets weights
with one more dimension, a set for each group of examples, it multiplies each group by its own. All
else, pooling for instance, is as fast as in a plain network, which under vmap it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._support.private_torch import Dropout, transforms_active
from tacit._support.trees import tensors_in
from tacit.calling.caller import Caller, Inputs, Weights, has_batch_norm

PROPERTIES = {Tensor.dtype.__get__, Tensor.device.__get__, Tensor.requires_grad.__get__}  # type: ignore[attr-defined]


class CannotGroupError(RuntimeError):
    """A random tensor is used by something else than the layers that know of groups."""


class Grouped(Tensor):
    """Weights with a leading dimension: a set for each of K groups of consecutive examples."""

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
    """Return sampled weights as those of groups.

    Args:
        stacked: A set for each group, (K, *shape).
        mean: The parameter that they stand for.
        size: The number of examples in the batch.
    """
    found = stacked.as_subclass(Grouped)
    found.examples = size
    found.channels_last = mean.ndim == 4 and mean.stride(1) == 1 and mean[0, 0].numel() > 1
    return found


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    groups = _group_count(x, weight, bias)
    rows = x.reshape(groups, -1, x.shape[-1])
    weight = _plain(weight)
    weight = weight if weight.ndim == 3 else weight.expand(groups, -1, -1)
    # Weights first: forward and backward take half the time of rows @ weight.mT.
    outputs = (weight @ rows.mT).mT
    if bias is not None:
        bias = _plain(bias)[:, None] if isinstance(bias, Grouped) else bias
        outputs = outputs + bias.to(outputs.dtype)  # another under autocast
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
    format = torch.channels_last if weight.channels_last else torch.contiguous_format
    filters = [w.contiguous(memory_format=format) for w in _plain(weight).unbind()]
    biases = _plain(bias).unbind() if isinstance(bias, Grouped) else [bias] * count
    # One after another: as one convolution with groups of channels it takes twice as long, and
    # four times where there are three channels. With channels last LeNet-5 is 4 % faster so, but
    # narrow ResNets are 10 to 20 % slower.
    outputs = [
        F.conv2d(part, own, shift, stride, padding, dilation, groups)
        for part, own, shift in zip(x.chunk(count), filters, biases, strict=True)
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
    carefully: Callable[[], Any],
) -> Any:
    """Call a module on groups of examples by folding, if that is possible and right.

    Whether it is, is tried once for the module and its mode: the outputs must be those of the
    careful way.

    Args:
        caller: Calls the module, and remembers what was found.
        module: The module to call.
        weights: K sets of weights, (K, *shape) each.
        inputs: Its arguments, `size` examples in K consecutive groups.
        size: The batch size.
        carefully: Returns the same for any module.
    """
    mode = module.training
    if not caller.groupable.get(mode, True) or _unfit(module, weights, size):
        return carefully()
    if mode not in caller.groupable:
        with _trial(module):
            expected = carefully()
            same = _alike(_call_whole(caller, module, weights, inputs, size), expected)
        if same is None:
            return carefully()
        caller.groupable[mode] = same
    found = _call_whole(caller, module, weights, inputs, size) if caller.groupable[mode] else None
    if found is None:
        output = carefully()  # if the call itself is wrong, this says so
        caller.groupable[mode] = False
        return output
    return found


def _call_whole(
    caller: Caller, module: nn.Module, weights: Weights, inputs: Inputs, size: int
) -> Any:
    means = {name: module.get_parameter(name) for name in weights}
    by_group = {n: grouped(stacked, means[n], size) for n, stacked in weights.items()}
    try:
        output = caller.one(module, by_group, inputs)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError):
        return None
    whole = all(tensor.ndim and len(tensor) == size for tensor in tensors_in(output))
    return output if whole else None


def _unfit(module: nn.Module, weights: Weights, size: int) -> bool:
    """Return whether groups are uneven, examples see each other, or the call is transformed."""
    return (
        size % len(next(iter(weights.values()))) != 0
        or torch.compiler.is_compiling()
        or transforms_active()
        or has_batch_norm(module)
    )


def _alike(found: Any, expected: Any) -> bool | None:
    """Return whether outputs are the same, up to rounding; None if they don't tell."""
    first, second = tensors_in(found), tensors_in(expected)
    if len(first) != len(second) or any(a.shape != b.shape for a, b in zip(first, second)):  # noqa: B905
        return False
    largest = max((float(b.float().abs().max()) for b in second if b.numel()), default=0.0)
    if not math.isfinite(largest) or largest == 0:
        return None
    half = any(torch.is_autocast_enabled(b.device.type) or b.element_size() < 4 for b in second)
    pairs = zip(first, second, strict=True)
    error = max(float((a.float() - b.float()).abs().max()) for a, b in pairs if b.numel())
    return error <= (0.05 if half else 1e-3) * largest


@contextmanager
def _trial(module: nn.Module) -> Iterator[None]:
    """Compare without dropout and without gradients; modes and buffers are then as they were.

    Forward runs two more times for it, in the first call only.
    """
    quiet = [part for part in module.modules() if isinstance(part, Dropout) and part.training]
    buffers = {buffer: buffer.clone() for buffer in module.buffers()}
    for part in quiet:
        part.training = False
    try:
        with torch.no_grad(), torch.random.fork_rng():
            yield
    finally:
        for part in quiet:
            part.training = True
        for buffer, value in buffers.items():
            buffer.copy_(value)
