"""Operations on weights with noise in activation space: linear maps, convolutions, lookups.

Two forms of noise (see `weights/covariance/activation.py`). `Scaled` noise multiplies the inputs of
the operation. `Added` noise has a term of its own, B Z A^T: the operation with A in the place of
the weight, a product with Z, and one with B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.calling.caller import Weights
from tacit.calling.noisy_weight import (
    RULES,
    NoisyWeight,
    layout_of,
    mix,
    mix_groups,
    noisy_weight,
    plain,
    recomputing,
    refusal,
    scale,
)
from tacit.weights.covariance import Added, Scaled
from tacit.weights.distribution import Distribution, ExampleNoise
from tacit.weights.layers import RandomLayer


@dataclass(frozen=True)
class EachDraw:
    """A draw of the weights for every example.

    Args:
        layers: The layers with noise in activation space, with their distributions.
        noise: Their noise z by label.
        shared: Sampled weights of the other layers, the same for all examples.
    """

    layers: Mapping[str, tuple[RandomLayer, Distribution]]
    noise: Mapping[str, ExampleNoise]
    shared: Weights

    def per_example(
        self, layouts: dict[str, set[str]], extend: bool = True, viewed: bool = False
    ) -> Weights:
        """Return the weights of all examples, without forming them; see `noisy_weights`.

        With `viewed`, operations use views of the means, so that the use of the means themselves
        can be told apart (see `checked_use`).
        """
        size = len(next(iter(self.noise.values())))
        layers = with_viewed_means(self.layers) if viewed else self.layers
        return {**self.shared, **noisy_weights(layers, self.noise, size, layouts, extend)}

    def of_example(self, index: int) -> Weights:
        """Return the weights of one example."""
        weights = dict(self.shared)
        for label, (layer, distribution) in self.layers.items():
            for tensor, sampled in distribution.weights(self.noise[label][index]).items():
                weights[layer.parameters[tensor]] = sampled
        return weights


def with_viewed_means(
    layers: Mapping[str, tuple[RandomLayer, Distribution]],
) -> dict[str, tuple[RandomLayer, Distribution]]:
    """Return the layers with views of their means."""
    return {
        label: (layer, replace(d, mean={name: t.view_as(t) for name, t in d.mean.items()}))
        for label, (layer, d) in layers.items()
    }


def noisy_weights(
    layers: Mapping[str, tuple[RandomLayer, Distribution]],
    noise: Mapping[str, Tensor | ExampleNoise],
    examples: int | None = None,
    layouts: dict[str, set[str]] | None = None,
    extend: bool = True,
) -> dict[str, Tensor]:
    """Return the weights of layers with noise in activation space, by their names in the module.

    Args:
        layers: The layers with their distributions.
        noise: Their noise z by label: of each example, or (K,) for the same noise in all examples.
        examples: The batch size, if examples have their own noise.
        layouts: Where the batch has been in the inputs so far, by parameter.
        extend: Whether to add to the layouts; else a new one raises `NewLayoutError`.
    """
    weights: dict[str, Tensor] = {}
    known: dict[str, set[str]] = {} if layouts is None else layouts
    for label, (layer, distribution) in layers.items():
        drawn = noise[label]
        given = (drawn.rows, drawn.signs) if isinstance(drawn, ExampleNoise) else (drawn,)
        for tensor, own in distribution.in_activation_space(*given).items():
            name = layer.parameters[tensor]
            places = known.setdefault(name, set()) if extend else frozenset(known.get(name, ()))
            mean, padding = distribution.mean[tensor], layer.padding.get(tensor, ())
            weights[name] = noisy_weight(name, mean, own, padding, examples, places)
    return weights


def _linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, layout: str | None = None
) -> Tensor:
    own, offset = _weight("linear", weight, bias, input)
    layout = layout or layout_of(input, own, input.ndim - 1)
    if isinstance(own.noise, Scaled):
        return F.linear(scale(input, own, -1, layout)[0], own.plain, bias)
    output = F.linear(input, own.plain, plain(bias))
    inner = mix(F.linear(input, own.noise.inputs, offset), own, -1, layout)
    return output + inner @ own.noise.outputs


def _addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    own, _ = _weight("addmm", mat2, None, mat1, input, axis=0)
    layout = layout_of(mat1, own, 1)
    if isinstance(own.noise, Scaled):
        scaled, _ = scale(mat1, own, -1, layout)
        return torch.addmm(input, scaled, own.plain, beta=beta, alpha=alpha)
    output = torch.addmm(input, mat1, own.plain, beta=beta, alpha=alpha)
    inner = mix(mat1 @ own.noise.outputs.T, own, -1, layout, transposed=True)
    return output + alpha * (inner @ own.noise.inputs)


def _convolution(operation: Callable[..., Tensor], dimensions: int) -> Callable[..., Tensor]:
    def apply(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        own, offset = _weight(operation.__name__, weight, bias, input)
        layout = _layout_of_images(operation, input, own, dimensions)
        settings = (stride, padding, dilation, groups)
        if isinstance(own.noise, Scaled):
            scaled, factor = scale(input, own, 1, layout)
            with recomputing(scaled, input, factor):
                return operation(scaled, own.plain, bias, *settings)
        output = operation(input, own.plain, plain(bias), *settings)
        A, B = own.noise.inputs, own.noise.outputs
        if groups > 1:  # all groups share A
            A = A.repeat(groups, *[1] * (A.ndim - 1))
            offset = None if offset is None else offset.repeat(groups)
        inner = mix_groups(operation(input, A, offset, *settings), own, groups, layout)
        pointwise = B.T.reshape(*B.T.shape, *[1] * dimensions)
        return output + operation(inner, pointwise, groups=groups)

    return apply


def _transposed_convolution(
    operation: Callable[..., Tensor], convolution: Callable[..., Tensor], dimensions: int
) -> Callable[..., Tensor]:
    def apply(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Tensor:
        own, _ = _weight(operation.__name__, weight, None, input, bias, axis=0)
        layout = _layout_of_images(operation, input, own, dimensions)
        settings = (stride, padding, output_padding, groups, dilation)
        if isinstance(own.noise, Scaled):
            scaled, factor = scale(input, own, 1, layout)
            with recomputing(scaled, input, factor):
                return operation(scaled, own.plain, bias, *settings)
        # The weight's first dimension is its input, so B comes first. All groups share A.
        output = operation(input, own.plain, bias, *settings)
        A, B = own.noise.inputs, own.noise.outputs
        pointwise = B.unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 1)
        inner = convolution(
            input, pointwise.reshape(*pointwise.shape, *[1] * dimensions), groups=groups
        )
        inner = mix_groups(inner, own, groups, layout, transposed=True)
        A = A.repeat(groups, *[1] * (A.ndim - 1))
        return output + operation(inner, A, None, *settings)

    return apply


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    own, _ = _weight("embedding", weight, None, input, may_pad=True)
    if max_norm is not None or scale_grad_by_freq:
        raise refusal("embedding with max_norm or scale_grad_by_freq", own)
    looked_up = F.embedding(input, own.plain, padding_idx, sparse=sparse)
    layout = layout_of(looked_up, own, looked_up.ndim - 1)
    if isinstance(own.noise, Scaled):
        noisy, _ = scale(looked_up, own, -1, layout)
    else:
        components = F.embedding(input, own.noise.outputs.T)
        inner = mix(components, own, -1, layout, transposed=True)
        noisy = looked_up + inner @ own.noise.inputs
    for row in own.padding:
        noisy = torch.where((input == row).unsqueeze(-1), looked_up, noisy)
    return noisy


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
    biases = (in_bias, bias_k, bias_v)
    if query.ndim != 3:
        raise refusal("attention without a batch", *weights, out_weight, *biases, out_bias)
    if any(isinstance(bias, NoisyWeight) for bias in biases) or any(
        isinstance(weight, NoisyWeight) and isinstance(weight.noise, Added) for weight in weights
    ):
        raise refusal("attention with noise that is added to its projections", *weights, *biases)
    for weight in weights:
        if isinstance(weight, NoisyWeight) and getattr(weight.noise, "axis", 1) != 1:
            raise refusal("attention, whose inputs are in another dimension,", weight)
    inputs: list[Tensor] = []
    for i, (x, weight) in enumerate(zip((query, key, value), weights, strict=True)):
        if i and x is (query, key)[i - 1] and weight is weights[i - 1]:
            inputs.append(inputs[-1])  # self-attention expects the same tensor
        elif isinstance(weight, NoisyWeight):
            inputs.append(scale(x, weight, -1, _second(weight))[0])
        else:
            inputs.append(x)
    for name, weight in zip("qkv", separate, strict=True):
        kwargs[f"{name}_proj_weight"] = plain(weight)
    own_out = isinstance(out_weight, NoisyWeight)
    inner = torch.eye(width, dtype=query.dtype, device=query.device) if own_out else out_weight
    call: Any = F.multi_head_attention_forward
    output, attention = call(
        *inputs, width, heads, plain(in_weight), in_bias, bias_k, bias_v, add_zero, dropout,
        inner, None if own_out else out_bias, **kwargs,
    )  # fmt: skip
    if isinstance(out_weight, NoisyWeight):
        output = _linear(output, out_weight, out_bias, layout=_second(out_weight))
    return output, attention


RULES.update(
    {
        F.linear: _linear,
        F.conv1d: _convolution(F.conv1d, 1),
        F.conv2d: _convolution(F.conv2d, 2),
        F.conv3d: _convolution(F.conv3d, 3),
        F.conv_transpose1d: _transposed_convolution(F.conv_transpose1d, F.conv1d, 1),
        F.conv_transpose2d: _transposed_convolution(F.conv_transpose2d, F.conv2d, 2),
        F.conv_transpose3d: _transposed_convolution(F.conv_transpose3d, F.conv3d, 3),
        F.embedding: _embedding,
        F.multi_head_attention_forward: _attention,
        torch.addmm: _addmm,  # Hugging Face's Conv1D
    }
)


def _weight(
    operation: str,
    weight: Tensor,
    bias: Tensor | None,
    *others: Tensor | None,
    axis: int = 1,
    may_pad: bool = False,
) -> tuple[NoisyWeight, Tensor | None]:
    """Return the weight with noise and, if the bias has the same noise, the bias's part of A.

    Raises `NotInActivationSpaceError` if another argument has noise, or it doesn't fit.

    Args:
        operation: Name of the operation.
        weight: The weight.
        bias: The bias, which may have noise if that of the weight is `Added`.
        *others: Other arguments.
        axis: Dimension of the weight that runs over input units in this operation.
        may_pad: Whether the operation can leave rows without noise.
    """
    if not isinstance(weight, NoisyWeight) or any(isinstance(o, NoisyWeight) for o in others):
        raise refusal(operation, weight, bias, *others)
    own = weight.noise
    if isinstance(own, Scaled) and own.axis != axis:
        raise refusal(f"{operation}, whose inputs are in another dimension,", weight)
    if weight.padding and not may_pad:
        raise refusal(f"{operation} with a padding row", weight)
    if not isinstance(bias, NoisyWeight):
        return weight, None
    other = bias.noise
    if (
        isinstance(own, Added)
        and isinstance(other, Added)
        and other.outputs is own.outputs
        and other.z is own.z
    ):
        return weight, other.inputs
    raise refusal(f"{operation} with a bias that has noise of its own", weight, bias)


def _layout_of_images(
    operation: Callable[..., Tensor], input: Tensor, weight: NoisyWeight, dimensions: int
) -> str | None:
    if input.ndim != dimensions + 2:
        raise refusal(f"{operation.__name__} without a batch", weight)
    return layout_of(input, weight, 1)


def _second(weight: NoisyWeight) -> str | None:
    """Return the layout inside of attention, where the batch is second."""
    return None if weight.examples is None else "second"
