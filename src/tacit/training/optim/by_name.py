"""Torch's optimizers by name, over the parameter groups of a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tacit.calling import Variational
from tacit.scaling import Parametrization, optimizer_kind, param_groups
from tacit.training.optim.eligibility import has_wide_layers
from tacit.training.optim.sgd import SGD


def make_optimizer(
    net: nn.Module,
    lr: float,
    optimizer: str = "sgd",
    *,
    parametrization: Parametrization | None = None,
    weight_decay: float = 0.0,
    factor_speed: float | None = None,
    deferred_draws: int | None = None,
    **settings: Any,
) -> torch.optim.Optimizer:
    """Return one of torch's optimizers over the parameter groups of a network.

    For SGD on a variational model this is `tacit.SGD`, which takes the same steps.

    Args:
        net: A plain network or a variational model.
        lr: Base learning rate, before the parametrization's scaling.
        optimizer: Name of the optimizer.
        parametrization: Parametrization of a plain network; a variational model has its own.
        weight_decay: Weight decay of the network's parameters.
        factor_speed: How fast a variational model forgets its prior; see
            `Variational.param_groups`.
        deferred_draws: Draws of the weights per step, in a loop in which only the optimizer changes
            parameters: SGD then defers updates of wide low-rank layers where that is faster.
            None for no deferral.
        **settings: Further arguments of the optimizer, for instance `momentum`.

    Raises:
        ValueError: If the scaling of the optimizer's learning rates is unknown.
    """
    kind = optimizer_kind(optimizer)
    if isinstance(net, Variational) and optimizer.lower() == "sgd":
        deferred = deferred_draws is not None and has_wide_layers(
            net.distributions.values(), deferred_draws
        )
        settings |= {"weight_decay": weight_decay, "factor_speed": factor_speed}
        return SGD(net, lr, deferred=deferred, **settings)
    if isinstance(net, Variational):
        groups = net.param_groups(
            lr, optimizer, weight_decay=weight_decay, factor_speed=factor_speed
        )
    else:
        groups = param_groups(
            net, lr, optimizer, parametrization=parametrization, weight_decay=weight_decay
        )
    constructor: Any = kind.constructor
    made: torch.optim.Optimizer = constructor(groups, lr=lr, **settings)
    return made
