"""Parameter groups for optimizers: every parameter once, with its learning rate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from tacit import _checks


@dataclass(frozen=True)
class Entry:
    """A parameter on its way into a group.

    Args:
        part: The name of the groups that it may be in: means or factors.
        name: Its name.
        parameter: The parameter.
        factor: What the learning rate is multiplied by.
        decay: Whether weight decay applies.
    """

    part: str
    name: str
    parameter: nn.Parameter
    factor: float
    decay: bool


def group(
    entries: Iterable[Entry], owner: nn.Module, lr: float, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Return groups with a name, parameters, learning rate and weight decay.

    Parameters with the same factor share a group. Weight decay is divided by the factor, so that
    learning rate times weight decay, what a step takes away, is the same for all.

    Raises:
        ValueError: If a parameter of `owner` is in no entry, or in two.
    """
    lr = _checks.positive_number("lr", lr)
    if weight_decay:
        weight_decay = _checks.positive_number("weight_decay", weight_decay)
    groups: dict[tuple[str, float, bool], dict[str, Any]] = {}
    seen: set[int] = set()
    for entry in entries:
        if id(entry.parameter) in seen:
            raise ValueError(f"param_groups: {entry.name!r} would be in two groups.")
        seen.add(id(entry.parameter))
        decay = entry.decay and weight_decay > 0
        name = f"{entry.part} x{entry.factor:.6g}" + (", decayed" if decay else "")
        place = groups.setdefault(
            (entry.part, entry.factor, decay),
            {
                "name": name,
                "params": [],
                "lr": lr * entry.factor,
                "weight_decay": weight_decay / entry.factor if decay else 0.0,
            },
        )
        place["params"].append(entry.parameter)
    missing = [name for name, value in owner.named_parameters() if id(value) not in seen]
    if missing:
        raise ValueError(f"param_groups: in no group: {', '.join(missing)}.")
    return list(groups.values())
