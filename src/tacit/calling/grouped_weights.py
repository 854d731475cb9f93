"""All groups of a batch in one ordinary pass: only random layers handle groups.

The whole batch runs through the module. Random weights carry a leading group dimension; a linear
layer or 2-D convolution that receives them applies to each group its own weights. All other
operations, such as pooling, run on the whole batch as fast as in a plain network, which they don't
under vmap.
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
        with _trial(module):
            expected = fallback()
            agree = _agree(_call_in_one_pass(caller, module, weights, inputs, size), expected)
        if agree is None:
            return fallback()
        caller.groupable[mode] = agree
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
    except torch.OutOfMemoryError:
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


def _agree(output: Any, expected: Any) -> bool | None:
    """Return whether outputs agree up to rounding; None if all are 0 or some aren't finite."""
    first, second = tensors_in(output), tensors_in(expected)
    if len(first) != len(second) or any(a.shape != b.shape for a, b in zip(first, second)):  # noqa: B905
        return False
    largest = max((float(b.float().abs().max()) for b in second if b.numel()), default=0.0)
    if not math.isfinite(largest) or largest == 0:
        return None
    low = any(torch.is_autocast_enabled(b.device.type) or b.element_size() < 4 for b in second)
    pairs = zip(first, second, strict=True)
    error = max(float((a.float() - b.float()).abs().max()) for a, b in pairs if b.numel())
    return error <= (0.05 if low else 1e-3) * largest


@contextmanager
def _trial(module: nn.Module) -> Iterator[None]:
    """Disable dropout and gradients; restore modes and buffers on exit.

    The trial costs two more forward passes, in the first call only.
    """
    dropouts = [part for part in module.modules() if isinstance(part, Dropout) and part.training]
    buffers = {buffer: buffer.clone() for buffer in module.buffers()}
    for part in dropouts:
        part.training = False
    try:
        with torch.no_grad(), torch.random.fork_rng():
            yield
    finally:
        for part in dropouts:
            part.training = True
        for buffer, value in buffers.items():
            buffer.copy_(value)
