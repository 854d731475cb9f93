"""Convert a variational model to plain modules: its mean, or an ensemble of sampled networks."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from tacit._support import checks
from tacit._support.names import grow
from tacit.calling.caller import Caller, Weights
from tacit.calling.interface import Wrapper, class_with_signature, wrapper_class
from tacit.calling.model import Variational
from tacit.calling.usage import tied_names
from tacit.weights.adapter import merge_adapters


def deterministic(model: Variational) -> nn.Module:
    """Return a copy of the wrapped module with the mean weights.

    The mean terms of `tacit.adapters` are added to the weights of their layers. If the model
    standardises its inputs, the copy is a `torch.nn.Sequential` of the layer that does and the
    module. Outputs are those of the module: for a model of real targets trained by
    `tacit.fit`, in units of the targets' spread (`model.likelihood.location` and `.unit`).

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(4, 2))
        >>> tacit.deterministic(model)
        Linear(in_features=4, out_features=2, bias=True)
    """
    module = copy.deepcopy(_variational(model).module)
    merge_adapters(module)
    return module if model.inputs is None else nn.Sequential(copy.deepcopy(model.inputs), module)


def ensemble(
    model: Variational, samples: int = 32, *, generator: torch.Generator | None = None
) -> Ensemble:
    """Return an ensemble of sampled networks: a module without randomness, for `torch.export`.

    Args:
        model: The model to sample from.
        samples: Number M of networks.
        generator: Source of randomness.

    Returns:
        A module that takes the wrapped module's arguments and returns its output with a leading
        dimension M in every tensor. Only the random parameters are stored M times. No parameter
        requires a gradient.

    Examples:
        >>> import tacit, torch
        >>> networks = tacit.ensemble(tacit.variational(torch.nn.Linear(4, 2)), samples=8)
        >>> networks(torch.randn(5, 4)).shape
        torch.Size([8, 5, 2])
    """
    samples = checks.positive_integer("samples", samples)
    with torch.no_grad():
        weights = _variational(model).sample(samples, generator=generator)
    networks = wrapper_class(Ensemble, class_with_signature(model.module))(
        copy.deepcopy(model.module), weights
    )
    networks.inputs = copy.deepcopy(model.inputs)
    return networks


class Ensemble(Wrapper):
    """M networks that share all parameters that are not random; made by `ensemble`.

    Attributes:
        module: The module that all networks share.
        weights: The sampled parameters as buffers, under their names in the module.
        inputs: The layer that standardises the inputs, or None.

    Examples:
        >>> import tacit, torch
        >>> networks = tacit.ensemble(tacit.variational(tacit.models.MLP(4, [8], 3)), samples=32)
        >>> {name: tuple(value.shape) for name, value in networks.weights.named_buffers()}
        {'3.weight': (32, 3, 8), '3.bias': (32, 3)}
    """

    def __init__(self, module: nn.Module, weights: Weights) -> None:
        super().__init__()
        self.module = module
        self.inputs: nn.Module | None = None
        self.weights = nn.Module()
        self._caller = Caller(tied_names(module))
        for name, stacked in weights.items():
            path, _, tensor = name.rpartition(".")
            grow(self.weights, path).register_buffer(tensor, stacked)
        self.requires_grad_(False)
        self.train(module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of all networks, stacked."""
        args = args if self.inputs is None else (self.inputs(*args),)
        weights = dict(self.weights.named_buffers())
        return self._caller.call_stacked(self.module, [(weights, (args, kwargs))])[0]


def _variational(model: Variational) -> Variational:
    if not isinstance(model, Variational):
        raise TypeError(
            f"expected a model made by tacit.variational, received {type(model).__name__}."
        )
    return model
