"""Call a module with replaced weights: one set of weights, or a stack of them at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from tacit._support import checks
from tacit._support.names import join
from tacit._support.private_torch import (
    BatchNorm,
    NormBase,
    parametrization_cache,
    saved_tensor_hooks,
    transforms_active,
)
from tacit._support.trees import check_stackable, map_tensors, stack, tensors_in, with_tensors
from tacit.calling.recomputation import (
    Moment,
    keep_for_recomputation,
    moment,
    restores_random_state,
)
from tacit.calling.usage import WeightUseError, checked_use, inside_checkpoint

Weights: TypeAlias = Mapping[str, Tensor]
"""Name of a parameter in the module -> the tensor that replaces it, possibly stacked."""

Inputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a module's forward."""

# Chunks of a module whose first layer is a random convolution, on a CPU.
IMAGES_PER_CHUNK = 1024  # functions times images
LARGE_BATCH = 32  # minimum batch size for which one function at a time is faster
# Chunks of all other modules.
OUTPUT_BYTES = 2**28  # limit on one layer's output over all functions of a chunk
CPU_OUTPUT_BYTES = 2**24  # larger outputs miss the cache: a narrow ResNet-18 takes twice as long


@dataclass
class Caller:
    """Calls a module with given weights in place of its own.

    A stack of M sets of weights is vectorised with vmap where the module allows it. Only
    operations that depend on the weights are then computed M times: the layers before the first
    random one run once. A module that vmap can't run, such as one with `.item()` in forward, runs
    in a loop with the same result. After vmap's first failure, all calls of that kind use the loop.

    Args:
        aliases: Name of a tied parameter -> its names in other layers, from `tied_names`. Stored,
            because searching for tied parameters walks over the whole module.
        obstacles: Why a kind of call runs in a loop: (stacked inputs, train mode) -> reason.
        groupable: Train mode -> whether one pass serves all groups (see `draws`).
        outputs: Shapes of the inputs -> bytes of the largest output that depends on the weights.
        verified: Whether `verified_call` has found that the module uses the weights it is given.
    """

    aliases: Mapping[str, tuple[str, ...]]
    obstacles: dict[tuple[bool, bool], str] = field(default_factory=dict)
    groupable: dict[bool, bool] = field(default_factory=dict)
    outputs: dict[tuple[tuple[int, ...], ...], int] = field(default_factory=dict)
    verified: bool = False

    def call(self, module: nn.Module, weights: Weights, inputs: Inputs) -> Any:
        """Call the module with one set of weights."""
        args, kwargs = inputs
        replaced = dict(weights)
        for name, others in self.aliases.items():
            if name in weights:
                replaced.update(dict.fromkeys(others, weights[name]))
        if torch.compiler.is_compiling():
            return functional_call(module, replaced, args, kwargs, tie_weights=False)
        if parametrization_cache() and any("parametrizations." in name for name in replaced):
            raise WeightUseError(
                "torch.nn.utils.parametrize.cached() keeps the first draw of random parametrized "
                "weights for all later calls; call the model outside of it."
            )
        swaps = _swaps(module, replaced)
        before = [place[key] for place, key, _ in swaps]
        try:
            for place, key, new in swaps:
                place[key] = new
            output = module(*args, **kwargs)
        finally:
            for (place, key, _), old in zip(swaps, before, strict=True):
                place[key] = old
        for _, _, new in swaps:
            if isinstance(new, _Sampled) and new.checkpointed:
                keep_for_recomputation(new.owner, new.checkpointed, tensors_in(output))
        return output

    def verified_call(self, module: nn.Module, weights: Weights, call: Callable[[], Any]) -> Any:
        """Return `call()`, which gives `weights` to the module; the first time, verify their use.

        Raises:
            RuntimeError: If the module doesn't use the weights it is given, or changes them.
        """
        if self.verified or not torch.is_grad_enabled() or not _ordinary(weights):
            return call()
        self.verified = True  # for calls within this one
        try:
            return checked_use(module, weights, self.aliases, call)
        except BaseException:
            self.verified = False
            raise

    def call_stacked(
        self,
        module: nn.Module,
        chunks: Iterable[tuple[Weights, Inputs]],
        *,
        stacked_inputs: bool = False,
        prepare: Callable[[Weights], Weights] | None = None,
        watched: Callable[[Weights], Weights] | None = None,
    ) -> list[Any]:
        """Call the module with the M sets of weights of each chunk and stack the M outputs.

        Running statistics of norm layers take one step for all chunks together: every set of
        weights starts from the same statistics, and the result is the mean over all sets.

        Args:
            module: The module to call.
            chunks: Pairs of stacked weights, (M, *shape) each, and arguments. M may differ.
            stacked_inputs: Whether the tensors among the arguments have a leading dimension M too,
                one slice per set of weights. Scalar tensors are shared by all sets.
            prepare: Given if the stacked tensors are not weights: returns the weights of one set.
            watched: Returns the weights whose use is verified; the stacked ones if left out.

        Returns:
            For each chunk the module's output with a leading dimension M in every tensor.
        """
        before, after, outputs = tracked_statistics(module), [], []
        for weights, inputs in chunks:
            call = partial(
                self._call_chunk, module, weights, before, inputs, stacked_inputs, prepare
            )
            used = weights if watched is None else watched(weights)
            output, statistics = self.verified_call(module, used, call)
            outputs.append(output)
            after.append(statistics)
        for name, buffer in before.items():
            stacked = torch.cat([statistics[name] for statistics in after])
            buffer.copy_(stacked.mean(0) if stacked.is_floating_point() else stacked[0])
        return outputs

    def best_chunk(
        self,
        module: nn.Module,
        random: Collection[str],
        inputs: Inputs,
        in_weight_space: Collection[str] | None = None,
    ) -> int | None:
        """Return how many functions to run at a time; None for all at once.

        In a single chunk, the layers before the first random one run only once. If the first layer
        is random, nothing is shared, and vectorised convolutions are slow on a CPU: with all
        layers of a narrow ResNet-18 random, running 32 functions one by one takes a third of the
        time, and a training step of LeNet-5 with 64 takes half. Otherwise, without gradients, it is
        the largest chunk for which every output from the first random layer on fits into
        `OUTPUT_BYTES`, or on a CPU `CPU_OUTPUT_BYTES`.

        Args:
            module: The module to call.
            random: Names of its random parameters.
            inputs: Its arguments.
            in_weight_space: The random parameters whose samples are formed; all by default.
        """
        formed = random if in_weight_space is None else in_weight_space
        if torch.compiler.is_compiling():
            return None
        name, first = next(module.named_parameters())
        shapes = tuple(tuple(tensor.shape) for tensor in tensors_in(inputs))
        if name in formed and first.ndim >= 3 and first.device.type == "cpu":
            size = max((shape[0] for shape in shapes if shape), default=1)
            return 1 if size >= LARGE_BATCH else IMAGES_PER_CHUNK // max(1, size)
        # Autograd keeps all outputs anyway; in train mode a trial run would change running
        # statistics or draw dropout masks.
        if torch.is_grad_enabled() or any(part.training for part in module.modules()):
            return None
        if shapes not in self.outputs:
            self.outputs[shapes] = _largest_output(module, random, inputs)
        limit = CPU_OUTPUT_BYTES if first.device.type == "cpu" else OUTPUT_BYTES
        return max(1, limit // self.outputs[shapes])

    def _call_chunk(
        self,
        module: nn.Module,
        weights: Weights,
        before: Weights,
        inputs: Inputs,
        stacked_inputs: bool,
        prepare: Callable[[Weights], Weights] | None,
    ) -> tuple[Any, Weights]:
        """Return the stacked outputs and running statistics of one chunk."""
        statistics = _repeat(before, weights)
        state = {**weights, **statistics}
        kind = (stacked_inputs, module.training)
        single = not stacked_inputs and _count(weights) == 1
        # Exported under vmap, convolutions have a fixed batch size, and torch 2.9 can't save them.
        if single or kind in self.obstacles or torch.compiler.is_exporting():
            return self._loop(module, state, inputs, stacked_inputs, prepare), statistics
        try:
            return self._vectorized(module, state, inputs, stacked_inputs, prepare), statistics
        except (torch.OutOfMemoryError, WeightUseError):
            raise
        except (RuntimeError, TypeError) as error:
            # If the call itself is wrong, the loop raises the module's own error.
            statistics = _repeat(before, weights)
            state = {**weights, **statistics}
            output = self._loop(module, state, inputs, stacked_inputs, prepare)
            self.obstacles[kind] = str(error).partition("\n")[0]
            return output, statistics

    def _vectorized(
        self,
        module: nn.Module,
        state: Weights,
        inputs: Inputs,
        stacked_inputs: bool,
        prepare: Callable[[Weights], Weights] | None,
    ) -> Any:
        tensors = tensors_in(inputs) if stacked_inputs else []
        structure: Any = None

        def call_flat(state: Weights, *tensors: Tensor) -> tuple[Tensor, ...]:
            # vmap returns tensors only, so the output's containers leave through `structure`.
            nonlocal structure
            own_inputs = with_tensors(inputs, tensors) if stacked_inputs else inputs
            structure = self.call(module, state if prepare is None else prepare(state), own_inputs)
            return tuple(tensors_in(structure))

        dims = (0, *(0 if tensor.ndim else None for tensor in tensors))
        vectorized = vmap(call_flat, in_dims=dims, randomness="different")
        fallbacks = nullcontext() if torch.compiler.is_dynamo_compiling() else _operator_fallbacks()
        buffers = dict(module.named_buffers())
        with fallbacks:
            outputs = vectorized(dict(state), *tensors)
        _check_buffers(module, buffers)
        check_stackable(structure)
        return with_tensors(structure, outputs)

    def _loop(
        self,
        module: nn.Module,
        state: Weights,
        inputs: Inputs,
        stacked_inputs: bool,
        prepare: Callable[[Weights], Weights] | None,
    ) -> Any:
        outputs = []
        for m in range(_count(state)):
            one: Weights = {name: stacked[m] for name, stacked in state.items()}
            one = one if prepare is None else prepare(one)
            outputs.append(self.call(module, one, _slice(inputs, m) if stacked_inputs else inputs))
        return stack(outputs)


class _Sampled(dict[str, Any]):
    """A layer's parameters with samples among them.

    Checkpointed code runs again in the backward pass, when the means are back in place. Noise in
    activation space can be replayed there; samples themselves must not be read.
    """

    owner: nn.Module
    samples: set[str]
    surroundings: tuple[Any, bool]
    checkpointed: dict[Moment, Tensor]

    def __getitem__(self, name: str) -> Any:
        own = super().__getitem__(name)
        if (
            name not in self.samples
            or torch.compiler.is_compiling()
            # Checkpointing installs hooks on saved tensors, or disables gradients.
            or _surroundings() == self.surroundings
            or not inside_checkpoint(Caller.call)
        ):
            return own
        # A weight with noise in activation space has its mean's values, which are not replaced.
        if not hasattr(own, "plain") or not restores_random_state(Caller.call):
            raise WeightUseError(
                f"The random parameter {name!r} is used inside activation checkpointing, which "
                "would recompute with the mean weights in the backward pass. Disable it "
                "(`gradient_checkpointing_disable()` of a Hugging Face model) and checkpoint the "
                "variational model as a whole: torch.utils.checkpoint.checkpoint(model, x, "
                "use_reentrant=False)."
            )
        self.checkpointed[moment(name, own.plain)] = own
        return own


def _surroundings() -> tuple[Any, bool]:
    return saved_tensor_hooks(), torch.is_grad_enabled()


def _swaps(module: nn.Module, replaced: Weights) -> list[tuple[dict[str, Any], str, Any]]:
    """Return the assignments that replace tensors: (dictionary, key, value).

    `functional_call` replaces tensors too, but its overhead is 1 % of a training step of LeNet-5.
    """
    swaps: list[tuple[dict[str, Any], str, Any]] = []
    sampled: dict[nn.Module, _Sampled] = {}
    surroundings = _surroundings()
    for name, tensor in replaced.items():
        path, _, key = name.rpartition(".")
        owner = submodule(module, path)
        if key not in owner._parameters:
            swaps.append((owner._buffers, key, tensor))
            continue
        own = sampled.get(owner)
        if own is None:
            own = sampled[owner] = _Sampled(owner._parameters)
            own.owner, own.samples, own.surroundings = owner, set(), surroundings
            own.checkpointed = {}
            swaps.append((vars(owner), "_parameters", own))
        own[key] = tensor
        own.samples.add(key)
    return swaps


def submodule(root: nn.Module, path: str) -> nn.Module:
    """Return `root.get_submodule(path)` for a path from `named_modules`, in a fifth of the time."""
    found: nn.Module | None = root
    for part in path.split(".") if path else ():
        found = found._modules.get(part) if found is not None else None
    return root.get_submodule(path) if found is None else found  # raises torch's own error


def leading_shape(weights: Weights, shapes: Mapping[str, torch.Size]) -> tuple[int, ...]:
    """Return the sample shape that precedes the parameters' own shapes in all sampled tensors.

    Args:
        weights: Sampled weights.
        shapes: Names and shapes of the random parameters.

    Raises:
        ValueError: If the weights are not a sample of these parameters.
    """
    if not isinstance(weights, Mapping) or weights.keys() != shapes.keys():
        received = list(weights) if isinstance(weights, Mapping) else type(weights).__name__
        raise ValueError(
            "weights: expected a sample of this model, with the tensors "
            f"{', '.join(shapes)}; received {received}."
        )
    first = next(iter(shapes))
    leading = weights[first].shape[: weights[first].ndim - len(shapes[first])]
    for name, tensor in weights.items():
        expected = (*leading, *shapes[name])
        if tensor.shape != expected:
            raise ValueError(
                f"weights: expected {name!r} of shape {expected}, received {tuple(tensor.shape)}."
            )
    return tuple(leading)


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


def _ordinary(weights: Weights) -> bool:
    """Return whether the weights have values: no compilation, transform, fake or meta tensors."""
    special = torch.compiler.is_compiling() or transforms_active()
    return not special and all(
        type(tensor) is Tensor and not tensor.is_meta for tensor in weights.values()
    )


def _count(stacked: Weights) -> int:
    return len(next(iter(stacked.values())))


def _repeat(buffers: Weights, weights: Weights) -> dict[str, Tensor]:
    size = _count(weights)
    return {name: value.expand(size, *value.shape).clone() for name, value in buffers.items()}


def _slice(inputs: Inputs, m: int) -> Inputs:
    sliced: Inputs = map_tensors(lambda tensor: tensor[m] if tensor.ndim else tensor, inputs)
    return sliced


def _check_buffers(module: nn.Module, before: Weights) -> None:
    """Restore buffers that forward replaced by vmap's batched tensors, and raise RuntimeError."""
    after = dict(module.named_buffers())
    replaced = [name for name, buffer in after.items() if before.get(name) is not buffer]
    for name in replaced:
        path, _, key = name.rpartition(".")
        setattr(module.get_submodule(path), key, before.get(name))
    if replaced:
        raise RuntimeError(f"forward replaces the buffer {replaced[0]!r}")


@contextmanager
def _operator_fallbacks() -> Iterator[None]:
    """Work around the limits of attention operators under vmap.

    They have no batching rule; vmap's warning that it loops over them is silenced. The fast path of
    eval mode has no derivative, and doesn't detect that batched tensors need one.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    if torch.is_grad_enabled():
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
