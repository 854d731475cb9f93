"""Temperatures: logits of predictions divided by a number."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from torch import Tensor

Scope: TypeAlias = Literal["logits", "mean"]


def check_scope(scope: Scope) -> Scope:
    """Return the scope, if it is one."""
    if scope not in get_args(Scope):
        raise ValueError(f"scope: expected logits or mean, received {scope!r}.")
    return scope


def scaled_logits(
    logits: Tensor, temperature: Tensor, scope: Scope = "logits", offset: Tensor | None = None
) -> Tensor:
    """Return the logits of M functions with a temperature.

    Args:
        logits: (M, B, ...).
        temperature: T, one number or one for each class.
        scope: "logits" divides them by T; "mean" divides their mean over functions only and keeps
            how the functions deviate from it, as the paper's theory does.
        offset: Added afterwards, one number for each class.
    """
    temperature = temperature.to(logits)
    if scope == "logits":
        scaled = logits / temperature
    else:
        mean = logits.mean(0)
        scaled = mean / temperature + (logits - mean)
    return scaled if offset is None else scaled + offset.to(logits)
