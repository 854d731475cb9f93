"""Temperatures: logits of predictions divided by a number."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor

Scope: TypeAlias = Literal["logits", "mean"]


def scaled_logits(logits: Tensor, temperature: Tensor, scope: Scope = "logits") -> Tensor:
    """Return the logits of M functions with a temperature.

    Args:
        logits: (M, B, ...).
        temperature: T.
        scope: "logits" divides them by T; "mean" divides their mean over functions only and keeps
            how the functions deviate from it, as the paper's theory does.
    """
    temperature = temperature.to(logits)
    if scope == "logits":
        return logits / temperature
    mean = logits.mean(0)
    return mean / temperature + (logits - mean)
