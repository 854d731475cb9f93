"""Activation checkpointing inside a module: recomputation with the same noise.

Checkpointed code runs again in the backward pass, when the means are back in place. torch restores
the state of the random generators for it, so this state identifies the call being recomputed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import FrameType
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.utils import checkpoint

from tacit._support.private_torch import running_backward
from tacit._support.trees import tensors_in
from tacit.calling.usage import WeightUseError

Moment: TypeAlias = tuple[int, str]
"""Hash of the random generators' state, and the name of the parameter being read."""


class RecomputedParameters(dict[str, Any]):
    """A layer's parameters; a recomputation reads those of the call that it repeats.

    Copies and pickles are ordinary dictionaries.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.weights: WeakValueDictionary[Moment, Tensor] = WeakValueDictionary()

    def __getitem__(self, name: str) -> Any:
        own = super().__getitem__(name)
        if own is None or running_backward() == -1 or not self.weights:
            return own
        return self.weights.get(moment(name, own), own)

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (dict(self),)


def moment(name: str, parameter: Tensor) -> Moment:
    """Return a key for the read of a parameter, the same in the call and its recomputation."""
    states = [torch.get_rng_state()]
    if parameter.device.type != "cpu":
        states.append(torch.get_device_module(parameter.device).get_rng_state())
    return hash(tuple(state.numpy().tobytes() for state in states)), name


def keep_for_recomputation(
    owner: nn.Module, read: Mapping[Moment, Tensor], outputs: Iterable[Tensor]
) -> None:
    """Keep a call's weights for recomputation, for the lifetime of its outputs' graph.

    Args:
        owner: The layer.
        read: The weights that checkpointed code has read.
        outputs: The outputs of the call.

    Raises:
        WeightUseError: If another call began with the same random state.
    """
    parameters = vars(owner)["_parameters"]
    if not isinstance(parameters, RecomputedParameters):
        parameters = vars(owner)["_parameters"] = RecomputedParameters(parameters)
    for when, weight in read.items():
        if parameters.weights.get(when, weight) is not weight:
            raise WeightUseError(
                "Two calls with the same state of PyTorch's global generator use activation "
                "checkpointing, so recomputation can't distinguish them. Call the model "
                "without `generator`, or between backward passes."
            )
        parameters.weights[when] = weight
    for node in {tensor.grad_fn for tensor in tensors_in(list(outputs))}:
        if node is not None:
            node.register_hook(partial(_hold, dict(read)))


def _hold(_: Mapping[Moment, Tensor], *__: Any) -> None:
    """Hold a reference: the weights live as long as the node that has this hook."""


def restores_random_state(until: Callable[..., Any]) -> bool:
    """Return whether all checkpointing on the call stack restores the random state.

    Args:
        until: Where to stop: the innermost call of this function.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not until.__code__:
        local = frame.f_locals
        if frame.f_code.co_filename == checkpoint.__file__:
            if not (local.get("preserve", True) and local.get("preserve_rng_state", True)):
                return False
        elif isinstance(local.get(next(iter(frame.f_code.co_varnames), "")), FunctionCtx):
            return False
        frame = frame.f_back
    return True
