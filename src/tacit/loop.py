"""What every training loop needs: an optimizer by its name, and a loss that fits the targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit.parametrization import Parametrization, optimizer_family
from tacit.scaling import param_groups

Data: TypeAlias = tuple[Tensor, Tensor]
"""Inputs and targets, examples first."""

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to a number."""

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    kind.__name__.lower(): kind
    for kind in (
        torch.optim.SGD,
        torch.optim.ASGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
    )
}


def make_optimizer(
    net: nn.Module,
    lr: float,
    optimizer: str = "sgd",
    *,
    parametrization: Parametrization | None = None,
    weight_decay: float = 0.0,
    **settings: Any,
) -> torch.optim.Optimizer:
    """Return one of torch's optimizers over the parameter groups of a network.

    Args:
        net: A plain network or a variational model.
        lr: Learning rate, before the factors of the parametrization.
        optimizer: Its name.
        parametrization: For a plain network; a variational model has its own.
        weight_decay: Weight decay of the network's parameters.
        **settings: Further arguments of the optimizer, for instance `momentum`.
    """
    optimizer_family(optimizer)
    groups = param_groups(
        net, lr, optimizer, parametrization=parametrization, weight_decay=weight_decay
    )
    constructor: Any = OPTIMIZERS[optimizer.lower()]
    made: torch.optim.Optimizer = constructor(groups, lr=lr, **settings)
    return made


def loss_for(targets: Tensor) -> Loss:
    """Return the cross-entropy for targets that are classes, the squared error for numbers."""
    return F.mse_loss if targets.is_floating_point() else F.cross_entropy


def check_data(data: Any) -> Data:
    """Return `data` if it is a pair of tensors with as many targets as inputs."""
    pair = tuple(data) if isinstance(data, tuple | list) else ()
    if len(pair) != 2 or not all(isinstance(part, Tensor) and part.ndim for part in pair):
        raise TypeError(
            "data: expected a pair of tensors, inputs and targets, with the examples first; "
            f"received {type(data).__name__}."
        )
    if not len(pair[0]) == len(pair[1]) > 0:
        raise ValueError(
            f"data: expected one target for each input, received {len(pair[0])} inputs and "
            f"{len(pair[1])} targets."
        )
    return pair
