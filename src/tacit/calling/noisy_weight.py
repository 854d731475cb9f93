"""Weights with noise in activation space: their mean and the noise, never their samples.

Where a covariance allows it (`Covariance.in_activation_space`), a layer's weight is replaced by a
`NoisyWeight`. The operation that receives it, a linear map, convolution or lookup, applies the mean
and the noise by a rule in `calling/operations.py`. All other operations see ordinary tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tacit._support.private_torch import saved_tensor_hooks, transforms_active, version
from tacit.calling.trial import PROPERTIES
from tacit.calling.usage import WeightUseError
from tacit.weights.covariance import ActivationNoise, Added, Scaled

# What modules may ask of a weight: it has the shape of its mean.
ATTRIBUTES = PROPERTIES | {
    getattr(Tensor, name).__get__ for name in ("shape", "ndim", "is_cuda", "is_nested", "layout")
}

LARGE = 2**18  # entries of a convolution's input from which computing it again pays

RULES: dict[Callable[..., Any], Callable[..., Any]] = {}
"""How operations treat noise: function of torch -> its rule."""


class NotInActivationSpaceError(WeightUseError):
    """A weight is used by an operation without a rule for noise in activation space."""

    def __init__(self, operation: str, names: set[str]) -> None:
        super().__init__(f"{', '.join(sorted(names))}: {operation} has no rule for noise.")
        self.operation, self.names = operation, names


class NewLayoutError(NotInActivationSpaceError):
    """The batch is in another place of an operation's inputs than in the verified calls."""


class NoisyWeight(Tensor):
    """A layer's weight: the mean, with noise of its own for every example, or the same for all.

    Attributes:
        parameter: Name of the parameter.
        plain: The mean.
        noise: The noise, with a leading dimension of examples if they have their own.
        padding: Rows without noise.
        examples: The batch size, None if the noise is the same for all.
        layouts: Where the batch has been in the inputs so far; extended if it is a set.
    """

    parameter: str
    plain: Tensor
    noise: ActivationNoise
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
            raise refusal(_operation(func), *_flat(given))
        return RULES[func](*args, **(kwargs or {}))


def noisy_weight(
    name: str,
    mean: Tensor,
    noise: ActivationNoise,
    padding: tuple[int, ...],
    examples: int | None,
    layouts: set[str] | frozenset[str],
) -> NoisyWeight:
    """Return a weight with noise; see `NoisyWeight` for the arguments."""
    weight = mean.as_subclass(NoisyWeight)
    weight.parameter, weight.plain, weight.noise = name, mean, noise
    weight.padding, weight.examples, weight.layouts = padding, examples, layouts
    return weight


def _operation(func: Callable[..., Any]) -> str:
    """Return the name of an operation; of the getter of an attribute, that of the attribute."""
    name = getattr(func, "__name__", str(func))
    return f".{func.__self__.__name__}" if name == "__get__" else name  # type: ignore[attr-defined]


def refusal(operation: str, *tensors: Any) -> NotInActivationSpaceError:
    """Return the error for weights in an operation that can't apply their noise."""
    names = {tensor.parameter for tensor in tensors if isinstance(tensor, NoisyWeight)}
    assert names, operation  # otherwise the same call would be tried again
    return NotInActivationSpaceError(operation, names)


def plain(tensor: Tensor | None) -> Tensor | None:
    """Return the mean of a weight with noise, and any other tensor as it is."""
    return tensor.plain if isinstance(tensor, NoisyWeight) else tensor


def layout_of(x: Tensor, weight: NoisyWeight, units: int) -> str | None:
    """Return where the batch is in x: "first" or "second" dimension, or "flat" in the first.

    None if the noise is the same for all examples.

    Args:
        x: Activations.
        weight: The weight that is applied to them.
        units: Dimension of x that runs over the weight's input units; x.ndim if none does.
    """
    size, known, found = weight.examples, weight.layouts, []
    if size is None:
        return None
    if units != 0:
        if x.shape[0] == size:
            found.append("first")
        if units != 1 and x.ndim > 2 and x.shape[1] == size:
            found.append("second")
        if x.shape[0] > size and x.shape[0] % size == 0:
            found.append("flat")
    seen = [layout for layout in found if layout in known]
    if len(found) > 1 and len(seen) != 1 and (known or torch.compiler.is_compiling()):
        raise refusal("an operation whose batch can be any of several dimensions", weight)
    if not found:
        raise refusal("an operation on inputs without the batch", weight)
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


@contextmanager
def recomputing(scaled: Tensor, x: Tensor, factor: Tensor) -> Iterator[None]:
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


def scale(x: Tensor, weight: NoisyWeight, units: int, layout: str | None) -> tuple[Tensor, Tensor]:
    """Return x with the units of each example multiplied by its noise, and the factor.

    Args:
        x: Activations.
        weight: The weight that holds the noise, (examples, units) or (units,).
        units: Dimension of x that runs over the units.
        layout: Where the batch is; see `layout_of`.
    """
    assert isinstance(weight.noise, Scaled)
    factor = _spread(weight.noise.factor, x, weight, units, layout)
    return x * factor, factor


def mix(
    u: Tensor, weight: NoisyWeight, units: int, layout: str | None, *, transposed: bool = False
) -> Tensor:
    """Return Z u for the components u of each example, along a dimension.

    Args:
        u: Components: R_in of them in the dimension `units`, or R_out if transposed.
        weight: The weight that holds Z.
        units: Dimension of u that runs over the components.
        layout: Where the batch is; see `layout_of`.
        transposed: Whether to return Z^T u, where a weight stores its inputs first.
    """
    assert isinstance(weight.noise, Added)
    Z = weight.noise.z
    if weight.noise.diagonal:
        return u * _spread(Z, u, weight, units, layout)
    Z = (Z if transposed else Z.mT).to(u.dtype)
    u = u.movedim(units, -1)
    if layout is None:
        return (u @ Z).movedim(-1, units)
    if layout == "flat":
        Z = Z.repeat_interleave(len(u) // len(Z), dim=0)
    batch = 1 if layout == "second" else 0
    rows = u.movedim(batch, 0)
    if len(rows) != len(Z):
        raise refusal("an operation on inputs without the batch", weight)
    flat = rows.flatten(1, -2) if rows.ndim > 2 else rows.unsqueeze(1)
    mixed = (flat @ Z).view(*rows.shape[:-1], Z.shape[-1])
    return mixed.movedim(0, batch).movedim(-1, units)


def mix_groups(
    u: Tensor, weight: NoisyWeight, groups: int, layout: str | None, *, transposed: bool = False
) -> Tensor:
    """Return Z u for the components of each group of a convolution, (B, groups R, ...)."""
    if groups == 1:
        return mix(u, weight, 1, layout, transposed=transposed)
    by_group = u.unflatten(1, (groups, -1))
    return mix(by_group, weight, 2, layout, transposed=transposed).flatten(1, 2)


def _spread(
    values: Tensor, x: Tensor, weight: NoisyWeight, units: int, layout: str | None
) -> Tensor:
    """Return values by example and unit, (examples, units) or (units,), in a shape like x's."""
    if values.dtype != x.dtype:
        values = values.to(x.dtype)  # under autocast
    units %= x.ndim
    if x.shape[units] != values.shape[-1]:  # groups that the layer doesn't declare
        raise refusal("an operation on another number of units", weight)
    shape = [1] * x.ndim
    shape[units] = values.shape[-1]
    if layout is None:
        return values.view(shape)
    if layout == "second":
        if x.shape[1] != len(values):
            raise refusal("an operation on inputs without the batch", weight)
        shape[1] = len(values)
    else:
        shape[0] = x.shape[0]
        if layout == "flat":  # (B, T, ...) was flattened to (B T, ...)
            values = values.repeat_interleave(x.shape[0] // len(values), dim=0)
    return values if x.ndim == values.ndim else values.view(shape)


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value
