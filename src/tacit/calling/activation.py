"""Noise in activation space: random weights that are never formed.

Where a covariance allows it (`Covariance.in_activation_space`), a layer's weight is replaced by a
`NoisyWeight`: its mean and the noise. The operation that receives it, a linear map, convolution or
lookup, applies both. All other operations see ordinary tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit._support.private_torch import saved_tensor_hooks, transforms_active, version
from tacit.calling.trial import PROPERTIES
from tacit.calling.usage import WeightUseError
from tacit.weights.covariance import Scaled
from tacit.weights.distribution import Distribution
from tacit.weights.layers import RandomLayer

# What modules may ask of a weight: it has the shape of its mean.
ATTRIBUTES = PROPERTIES | {
    getattr(Tensor, name).__get__ for name in ("shape", "ndim", "is_cuda", "is_nested", "layout")
}


LARGE = 2**18  # entries of a convolution's input from which computing it again pays


class NotInActivationSpaceError(WeightUseError):
    """A weight is used by an operation without a rule for noise in activation space."""

    def __init__(self, operation: str, names: set[str]) -> None:
        super().__init__(f"{', '.join(sorted(names))}: {operation} has no rule for noise.")
        self.operation, self.names = operation, names


class NewLayoutError(NotInActivationSpaceError):
    """The batch is in another place of an operation's inputs than in the verified calls."""


class NoisyWeight(Tensor):
    """A layer's weight: the mean, with noise of its own for every example, or the same for all."""

    parameter: str
    plain: Tensor
    noise: Scaled
    padding: tuple[int, ...]
    examples: int | None
    layouts: set[str] | frozenset[str]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in ATTRIBUTES:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        if func not in RULES:
            given = [*args, *(kwargs or {}).values()]
            raise _refusal(getattr(func, "__name__", str(func)), *_flat(given))
        return RULES[func](*args, **(kwargs or {}))


def noisy_weight(
    name: str,
    mean: Tensor,
    noise: Scaled,
    padding: tuple[int, ...],
    examples: int | None,
    layouts: set[str] | frozenset[str],
) -> NoisyWeight:
    """Return a weight with noise.

    Args:
        name: Name of the parameter.
        mean: The parameter.
        noise: Noise of shape (examples, units), or (units,) if it is the same for all.
        padding: Rows without noise.
        examples: The batch size, None if the noise is the same for all.
        layouts: Where the batch has been in the inputs so far; extended if it is a set.
    """
    weight = mean.as_subclass(NoisyWeight)
    # A view, so that the use of the mean itself can be told apart (see `checked_use`).
    weight.parameter, weight.plain, weight.noise = name, mean.view_as(mean), noise
    weight.padding, weight.examples, weight.layouts = padding, examples, layouts
    return weight


def noisy_weights(
    layers: Mapping[str, tuple[RandomLayer, Distribution]],
    noise: Mapping[str, Tensor],
    examples: int | None = None,
    layouts: dict[str, set[str]] | None = None,
    extend: bool = True,
) -> dict[str, Tensor]:
    """Return the weights of layers with noise in activation space, by their names in the module.

    Args:
        layers: The layers with their distributions.
        noise: Their noise z: label -> (examples, K), or (K,) for the same noise in all examples.
        examples: The batch size, if examples have their own noise.
        layouts: Where the batch has been in the inputs so far, by parameter.
        extend: Whether to add to the layouts; else a new one raises `NewLayoutError`.
    """
    weights: dict[str, Tensor] = {}
    known: dict[str, set[str]] = {} if layouts is None else layouts
    for label, (layer, distribution) in layers.items():
        for tensor, own in distribution.in_activation_space(noise[label]).items():
            name = layer.parameters[tensor]
            places = known.setdefault(name, set()) if extend else frozenset(known.get(name, ()))
            mean, padding = distribution.mean[tensor], layer.padding.get(tensor, ())
            weights[name] = noisy_weight(name, mean, own, padding, examples, places)
    return weights


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    own = _weight("linear", weight, input, bias)
    return F.linear(_scaled(input, own, -1), own.plain, bias)


def _addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    own = _weight("addmm", mat2, mat1, input, axis=0)
    return torch.addmm(input, _scaled(mat1, own, -1), own.plain, beta=beta, alpha=alpha)


def _convolution(
    operation: Callable[..., Tensor], dimensions: int, axis: int
) -> Callable[..., Tensor]:
    def apply(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        own = _weight(operation.__name__, weight, input, bias, axis=axis)
        if input.ndim != dimensions + 2:
            raise _refusal(f"{operation.__name__} without a batch", own)
        scaled, factor = _scaled_by(input, own, 1)
        with _recomputing(scaled, input, factor):
            return operation(scaled, own.plain, bias, *args, **kwargs)

    return apply


def _embedding(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    own = _weight("embedding", weight, input, may_pad=True)
    looked_up = F.embedding(input, own.plain, *args, **kwargs)
    scaled = _scaled(looked_up, own, -1)
    for row in own.padding:
        scaled = torch.where((input == row).unsqueeze(-1), looked_up, scaled)
    return scaled


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    in_weight: Tensor | None,
    in_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero: bool,
    dropout: float,
    out_weight: Tensor,
    out_bias: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Multi-head attention of inputs (T, B, E), with noise in its projections.

    The output projection is applied here: inside, an identity takes its place.
    """
    separate = [kwargs.get(f"{name}_proj_weight") for name in "qkv"]
    weights = [in_weight] * 3 if in_weight is not None else separate
    biases = (in_bias, bias_k, bias_v, out_bias)
    if query.ndim != 3 or any(isinstance(bias, NoisyWeight) for bias in biases):
        operation = "attention without a batch, or with noise in a bias"
        raise _refusal(operation, *weights, out_weight, *biases)
    inputs: list[Tensor] = []
    for i, (x, weight) in enumerate(zip((query, key, value), weights, strict=True)):
        if i and x is (query, key)[i - 1] and weight is weights[i - 1]:
            inputs.append(inputs[-1])  # self-attention expects the same tensor
        elif isinstance(weight, NoisyWeight):
            inputs.append(_scaled(x, weight, -1, "second"))
        else:
            inputs.append(x)
    for name, weight in zip("qkv", separate, strict=True):
        kwargs[f"{name}_proj_weight"] = _plain(weight)
    own_out = isinstance(out_weight, NoisyWeight)
    inner = torch.eye(width, dtype=query.dtype, device=query.device) if own_out else out_weight
    call: Any = F.multi_head_attention_forward
    output, attention = call(
        *inputs, width, heads, _plain(in_weight), in_bias, bias_k, bias_v, add_zero, dropout,
        inner, None if own_out else out_bias, **kwargs,
    )  # fmt: skip
    if isinstance(out_weight, NoisyWeight):
        output = F.linear(_scaled(output, out_weight, -1, "second"), out_weight.plain, out_bias)
    return output, attention


RULES: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    F.conv1d: _convolution(F.conv1d, 1, 1),
    F.conv2d: _convolution(F.conv2d, 2, 1),
    F.conv3d: _convolution(F.conv3d, 3, 1),
    F.conv_transpose1d: _convolution(F.conv_transpose1d, 1, 0),
    F.conv_transpose2d: _convolution(F.conv_transpose2d, 2, 0),
    F.conv_transpose3d: _convolution(F.conv_transpose3d, 3, 0),
    F.embedding: _embedding,
    F.multi_head_attention_forward: _attention,
    torch.addmm: _addmm,  # Hugging Face's Conv1D
}


def _weight(
    operation: str, weight: Tensor, *others: Tensor | None, axis: int = 1, may_pad: bool = False
) -> NoisyWeight:
    """Return the weight if it is the only argument with noise, and the operation fits the noise.

    Args:
        operation: Name of the operation.
        weight: The weight.
        *others: Other arguments.
        axis: Dimension of the weight that runs over input units in this operation.
        may_pad: Whether the operation can leave rows without noise.
    """
    if not isinstance(weight, NoisyWeight) or any(isinstance(o, NoisyWeight) for o in others):
        raise _refusal(operation, weight, *others)
    if weight.noise.axis != axis:
        raise _refusal(f"{operation}, whose inputs are in another dimension,", weight)
    if weight.padding and not may_pad:
        raise _refusal(f"{operation} with a padding row", weight)
    return weight


def _plain(weight: Tensor | None) -> Tensor | None:
    return weight.plain if isinstance(weight, NoisyWeight) else weight


@contextmanager
def _recomputing(scaled: Tensor, x: Tensor, factor: Tensor) -> Iterator[None]:
    """Let the backward pass of an operation on large inputs compute them again, not keep them.

    The unscaled inputs are kept anyway, for the gradient of the factor and by the activation
    function before. A training step of a ResNet would need a fifth more memory otherwise.
    """
    large = scaled.numel() >= LARGE and factor.requires_grad and torch.is_grad_enabled()
    # Hooks of checkpointing or offloading decide themselves what is kept.
    others = torch.compiler.is_compiling() or transforms_active() or saved_tensor_hooks()
    if not large or others:
        yield
        return
    place, shape, before = scaled.data_ptr(), scaled.shape, version(x)
    x, factor = x.detach(), factor.detach()

    def pack(saved: Tensor) -> Tensor | None:
        return None if saved.data_ptr() == place and saved.shape == shape else saved

    def unpack(kept: Tensor | None) -> Tensor:
        if kept is not None:
            return kept
        if version(x) != before:
            raise RuntimeError(
                "The input of a convolution with noise was changed in place, which its backward "
                "pass needs; don't change it in place."
            )
        return x * factor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def _scaled(x: Tensor, weight: NoisyWeight, units: int, layout: str | None = None) -> Tensor:
    """Return x with the units of each example multiplied by its noise."""
    return _scaled_by(x, weight, units, layout)[0]


def _scaled_by(
    x: Tensor, weight: NoisyWeight, units: int, layout: str | None = None
) -> tuple[Tensor, Tensor]:
    """Return x with the units of each example multiplied by its noise, and the factor.

    Args:
        x: Activations.
        weight: The weight that holds the noise, (examples, units) or (units,).
        units: Dimension of x that runs over the units.
        layout: Where the batch is, if that is known; see `_layout`.
    """
    factor, size = weight.noise.factor, weight.examples
    if factor.dtype != x.dtype:
        factor = factor.to(x.dtype)  # under autocast
    units %= x.ndim
    if x.shape[units] != factor.shape[-1]:  # groups that the layer doesn't declare
        raise _refusal("an operation on another number of units", weight)
    shape = [1] * x.ndim
    shape[units] = factor.shape[-1]
    if size is None:
        factor = factor.view(shape)
        return x * factor, factor
    layout = layout or _layout(x, size, weight, units)
    if layout == "second":
        if x.shape[1] != size:
            raise _refusal("an operation on inputs without the batch", weight)
        shape[1] = size
    else:
        shape[0] = x.shape[0]
        if layout == "flat":  # (B, T, ...) was flattened to (B T, ...)
            factor = factor.repeat_interleave(x.shape[0] // size, dim=0)
    factor = factor if x.ndim == factor.ndim else factor.view(shape)
    return x * factor, factor


def _layout(x: Tensor, size: int, weight: NoisyWeight, units: int) -> str:
    """Return where the batch is in x: "first" or "second" dimension, or "flat" in the first."""
    known, found = weight.layouts, []
    if units != 0:
        if x.shape[0] == size:
            found.append("first")
        if units != 1 and x.ndim > 2 and x.shape[1] == size:
            found.append("second")
        if x.shape[0] > size and x.shape[0] % size == 0:
            found.append("flat")
    seen = [layout for layout in found if layout in known]
    if len(found) > 1 and len(seen) != 1 and (known or torch.compiler.is_compiling()):
        raise _refusal("an operation whose batch can be any of several dimensions", weight)
    if not found:
        raise _refusal("an operation on inputs without the batch", weight)
    layout = seen[0] if seen else found[0]
    if layout in known:
        return layout
    if torch.compiler.is_compiling():  # an error that Dynamo can trace
        raise RuntimeError(
            'draws="each": the batch is in a place of an operation\'s inputs that no earlier call '
            "had. Call the model once with such inputs before it is compiled, to verify that "
            "examples don't depend on each other. Otherwise use draws=1."
        )
    if isinstance(known, frozenset):
        raise NewLayoutError("an operation with its batch in a new place", {weight.parameter})
    known.add(layout)
    return layout


def _refusal(operation: str, *tensors: Any) -> NotInActivationSpaceError:
    names = {tensor.parameter for tensor in tensors if isinstance(tensor, NoisyWeight)}
    assert names, operation  # otherwise the same call would be tried again
    return NotInActivationSpaceError(operation, names)


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value
