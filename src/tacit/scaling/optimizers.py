"""The torch optimizers whose learning rates can be scaled, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

Family: TypeAlias = Literal["sgd", "adam"]
"""Whether a step is proportional to the gradient (SGD) or normalised entry by entry (Adam)."""


@dataclass(frozen=True)
class OptimizerKind:
    """A torch optimizer and the family whose scaling it follows."""

    constructor: type[torch.optim.Optimizer]
    family: Family


OPTIMIZERS: dict[str, OptimizerKind] = {
    "sgd": OptimizerKind(torch.optim.SGD, "sgd"),
    "asgd": OptimizerKind(torch.optim.ASGD, "sgd"),
    "adam": OptimizerKind(torch.optim.Adam, "adam"),
    "adamw": OptimizerKind(torch.optim.AdamW, "adam"),
    "adamax": OptimizerKind(torch.optim.Adamax, "adam"),
    "nadam": OptimizerKind(torch.optim.NAdam, "adam"),
    "radam": OptimizerKind(torch.optim.RAdam, "adam"),
    "rmsprop": OptimizerKind(torch.optim.RMSprop, "adam"),
    "adagrad": OptimizerKind(torch.optim.Adagrad, "adam"),
}


def optimizer_kind(optimizer: str) -> OptimizerKind:
    """Return the optimizer with this name, ignoring case.

    Raises:
        ValueError: If the scaling of its learning rate is unknown.
    """
    kind = OPTIMIZERS.get(optimizer.lower()) if isinstance(optimizer, str) else None
    if kind is None:
        raise ValueError(
            f"optimizer: expected one of {', '.join(OPTIMIZERS)}, received {optimizer!r}. How "
            "learning rates scale with width is known only where the step is proportional to the "
            "gradient or normalised entry by entry."
        )
    return kind


def optimizer_family(optimizer: str) -> Family:
    """Return the family of the optimizer with this name.

    Examples:
        >>> optimizer_family("AdamW")
        'adam'
    """
    return optimizer_kind(optimizer).family
