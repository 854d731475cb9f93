"""Calls with draws of the weights: for groups of a batch, for each example, or one for all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tacit._support.private_torch import transforms_active
from tacit._support.trees import tensors_in
from tacit.calling.arguments import Draws, number_of_draws
from tacit.calling.batch_groups import call_in_groups
from tacit.calling.caller import Caller, Inputs, tracked_statistics
from tacit.calling.deferral import Deferral
from tacit.calling.noisy_weight import NewLayoutError, NotInActivationSpaceError
from tacit.calling.operations import EachDraw
from tacit.calling.verification import ActivationSpace, verify
from tacit.weights.distribution import Distribution, draw_noise, draw_noise_per_example
from tacit.weights.layers import RandomLayer


class RandomModel(Protocol):
    """What these calls need of a variational model."""

    module: nn.Module
    layers: tuple[RandomLayer, ...]
    draws: Draws
    training: bool
    deferral: Deferral | None
    caller: Caller
    activation_space: ActivationSpace

    def distribution(self, layer: RandomLayer) -> Distribution:
        """Return the distribution of a layer, possibly with updates of its factors deferred."""

    def layers_in_activation_space(self) -> Mapping[str, tuple[RandomLayer, Distribution]]:
        """Return the layers that are called in activation space, with their distributions."""

    def form_weights(
        self, distributions: Mapping[str, Distribution], noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the weights of some layers for given noise, by their names in the module."""

    def settle(self) -> None:
        """Apply all deferred updates to the factors."""


def call_draws(
    model: RandomModel, draws: Draws | None, generator: torch.Generator | None, inputs: Inputs
) -> Any:
    """Call a model with draws for groups of examples, for each example, or one for all.

    Args:
        model: The model.
        draws: Number of draws, or "each"; None for the model's own.
        generator: Source of randomness.
        inputs: Arguments of the wrapped module.
    """
    wanted = model.draws if draws is None else number_of_draws("draws", draws)
    if isinstance(wanted, str):
        return _call_each(model, generator, inputs, requested=draws is not None)
    caller, module, count = model.caller, model.module, wanted
    size = 1 if count == 1 else batch_size(module, inputs)
    if draws is None and count > 1:
        # The default is an upper limit, since the last batch of an epoch may be smaller. Batch
        # norm needs two examples per group.
        count = min(count, size // 2 if tracked_statistics(module) else size)
    if count <= 1:
        weights = _training_weights(model, (), generator)
        return caller.verified_call(module, weights, partial(caller.call, module, weights, inputs))
    if count > size:
        raise ValueError(
            f"draws: expected at most one per example, {size}; received {count}. As an argument of "
            "`variational` it is an upper limit."
        )
    weights = _training_weights(model, (count,), generator)
    return caller.verified_call(
        module, weights, partial(call_in_groups, caller, module, weights, inputs, size)
    )


def check_each(layers: Iterable[RandomLayer]) -> None:
    """Raise ValueError if no layer can have a draw for each example."""
    if not any(layer.covariance.acts_on_activations for layer in layers):
        raise ValueError(
            'draws="each": expected a random layer whose noise can act on activations, such as '
            "tacit.Relative; samples of the weights would have to be formed for each example. Use "
            "a number of groups, for instance draws=8."
        )


def _call_each(
    model: RandomModel, generator: torch.Generator | None, inputs: Inputs, *, requested: bool
) -> Any:
    check_each(model.layers)
    try:
        size = batch_size(model.module, inputs)
    except ValueError as error:
        if requested:
            raise
        if not torch.compiler.is_compiling():
            reason = str(error).removeprefix("draws: ").removesuffix(" Use draws=1 otherwise.")
            model.activation_space.unsplit = reason
        return call_draws(model, 1, generator, inputs)  # the default must serve any module
    return _call_in_activation_space(
        model.caller,
        model.activation_space,
        model.module,
        inputs,
        draw=partial(_each_draw, model, size),
        generator=generator,
        fallback=partial(call_draws, model, 1, generator, inputs),
    )


def _call_in_activation_space(
    caller: Caller,
    space: ActivationSpace,
    module: nn.Module,
    inputs: Inputs,
    draw: Callable[[torch.Generator | None], EachDraw],
    generator: torch.Generator | None,
    fallback: Callable[[], Any],
) -> Any:
    """Call the module on a batch with a draw of the weights for every example.

    The first call in each mode finds out which layers can be called in activation space, and
    compares the outputs of some examples with those in weight space. If they differ, because
    examples depend on each other or on their place in the batch, the fallback is called from then
    on. Inputs with the batch in a new place are compared again, and so are arguments with other
    flags. A compiled call doesn't compare, but heeds what earlier calls have found.

    Args:
        caller: Calls the module.
        space: What earlier calls have found; extended.
        module: The module to call.
        inputs: Its arguments, with the batch first.
        draw: Draws weights for every example; one draw for all in the layers that can't have more.
        generator: Source of randomness.
        fallback: Calls the module with fewer draws.
    """
    mode = module.training
    if transforms_active():
        return fallback()
    compiling = torch.compiler.is_compiling()
    if compiling and mode not in space.verified:
        raise RuntimeError(
            'draws="each": call the model once in this mode before it is compiled, to verify that '
            "examples don't depend on each other. Otherwise use draws=1."
        )
    kind = None if compiling else (mode, _flags(inputs))
    if kind is not None and space.verified.get(mode, True) and kind not in space.kinds:
        agreed = verify(caller, space, module, inputs, draw)
        if agreed is None:
            return fallback()
        space.verified[mode] = agreed
        space.kinds.add(kind)
    # The call in the other mode may have refused the layers of this one.
    drawn = draw(generator) if space.verified[mode] else None
    if drawn is None or not drawn.layers:
        return fallback()
    if compiling:
        return caller.call(module, drawn.per_example(space.layouts, extend=False), inputs)
    try:
        return _call_verified(caller, space, module, inputs, drawn)
    except NewLayoutError:
        agreed = verify(caller, space, module, inputs, draw)
        if agreed is not None:
            space.verified[mode] = agreed
        if agreed:
            return _call_verified(caller, space, module, inputs, drawn)
    except NotInActivationSpaceError:  # inputs of other shapes than in the first call
        pass
    return fallback()


def _flags(inputs: Inputs) -> tuple[Any, ...]:
    """Return the arguments that can switch parts of a module on: which are given, and booleans."""
    args, kwargs = inputs
    if not kwargs and all(isinstance(value, Tensor) for value in args):
        return (len(args),)
    given = (*enumerate(args), *kwargs.items())
    return tuple((key, v if isinstance(v, bool) else v is not None) for key, v in given)


def _call_verified(
    caller: Caller, space: ActivationSpace, module: nn.Module, inputs: Inputs, drawn: EachDraw
) -> Any:
    weights = drawn.per_example(space.layouts, extend=False, viewed=not caller.verified)
    formed = {name: getattr(weight, "plain", weight) for name, weight in weights.items()}
    return caller.verified_call(module, formed, partial(caller.call, module, weights, inputs))


def _training_weights(
    model: RandomModel,
    shape: tuple[int, ...],
    generator: torch.Generator | None,
    layers: Collection[RandomLayer] | None = None,
) -> dict[str, Tensor]:
    """Draw weights for a training step; layers with deferred updates by their optimizer."""
    layers = model.layers if layers is None else layers
    distributions = {layer.label: model.distribution(layer) for layer in layers}
    drawn: Mapping[str, Mapping[str, Tensor]] = {}
    plain = generator is not None or not model.training or torch.compiler.is_compiling()
    if model.deferral is not None and plain:
        model.settle()
    elif model.deferral is not None:
        drawn = model.deferral.draw(distributions, shape)
    others = {n: d for n, d in distributions.items() if n not in drawn}
    weights = model.form_weights(others, draw_noise(others, shape, generator))
    for layer in (layer for layer in layers if layer.label in drawn):
        own = distributions[layer.label].with_padding(drawn[layer.label])
        for tensor, sampled in own.items():
            weights[layer.parameters[tensor]] = sampled
    return weights


def _each_draw(model: RandomModel, size: int, generator: torch.Generator | None) -> EachDraw:
    """Draw weights for each example of a batch where the layer allows it."""
    each = model.layers_in_activation_space()
    distributions = {label: distribution for label, (_, distribution) in each.items()}
    noise = draw_noise_per_example(distributions, size, generator)
    others = [layer for layer in model.layers if layer.label not in each]
    shared = _training_weights(model, (), generator, others) if others else {}
    return EachDraw(each, noise, shared)


def batch_size(module: nn.Module, inputs: Inputs) -> int:
    """Return the batch size B: the first dimension of all tensors among the inputs.

    Raises:
        ValueError: If the first dimensions differ, or if they are not the batch.
    """
    if (obstacle := _obstacle(module)) is not None:
        raise ValueError(f"draws: {obstacle}; use draws=1.")
    args, kwargs = inputs
    values = (*args, *kwargs.values())
    # Walking over nested inputs takes 1 % of a small network's training step.
    plain = all(isinstance(value, Tensor) for value in values)
    tensors = values if plain else tensors_in(inputs)
    shapes = [tuple(tensor.shape) for tensor in tensors if tensor.ndim]
    if len({shape[0] for shape in shapes}) != 1:
        received = ", ".join(map(str, shapes)) or "none"
        raise ValueError(
            "draws: expected tensor inputs that all have the batch as their first dimension; "
            f"received shapes: {received}. Use draws=1 otherwise."
        )
    size: int = shapes[0][0]
    for value in values:
        if not isinstance(value, Tensor):
            _check_not_per_example(value, size)
    return size


def _check_not_per_example(value: Any, size: int) -> None:
    """Raise ValueError if a value holds one entry per example outside of tensors.

    Lists of strings, NumPy arrays, pandas columns and others, also within containers. A list or an
    array of another length is shared by all groups.
    """
    if isinstance(value, (Tensor, str, bytes)):
        return
    if isinstance(value, Mapping):
        for entry in value.values():
            _check_not_per_example(entry, size)
    elif isinstance(value, (list, tuple)) and (len(value) != size or tensors_in(value)):
        for entry in value:
            _check_not_per_example(entry, size)
    elif _length(value) == size:
        raise ValueError(
            f"draws: a {type(value).__name__} with one entry for each of the {size} examples can't "
            "be cut into groups; pass a tensor, or use draws=1."
        )


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except TypeError:  # a number, None, an array without dimensions
        return None


def batch_first(module: nn.Module) -> bool:
    """Return whether the batch may be assumed to be the first dimension; see `_obstacle`."""
    return _obstacle(module) is None


def _obstacle(module: nn.Module) -> str | None:
    """Return why the first dimension isn't the batch in one of PyTorch's sequence modules."""
    name = f"nn.{type(module).__name__}"
    if isinstance(module, nn.RNNBase):
        return f"the state that {name} returns doesn't have the batch first"
    if not type(module).__module__.startswith("torch.nn."):
        return None  # a user's module may transpose its inputs before such a layer
    for layer in module.modules():
        if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)) and not layer.batch_first:
            return f"the batch must be the first dimension, but this {name} has batch_first=False"
    return None
