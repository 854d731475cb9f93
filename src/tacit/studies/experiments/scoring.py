"""Scores of a model during an experiment, and means over rows of results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.calling import Variational
from tacit.likelihood.predictive import average_log_probs


@torch.no_grad()
def error_and_nll(
    model: Variational, data: tuple[Tensor, Tensor], samples: int
) -> dict[str, float | None]:
    """Return error and NLL of the averaged prediction, with the same draws in every call.

    Both are None if the NLL is not finite. The model is left in train mode.
    """
    x, y = data
    generator = torch.Generator().manual_seed(0)
    logits = model.eval()(x, samples=samples, generator=generator)
    log_probs = average_log_probs(logits, "log_probs")  # as in the paper
    model.train()
    nll = F.nll_loss(log_probs, y).item()
    if not math.isfinite(nll):
        return {"error": None, "nll": None}
    return {"error": (log_probs.argmax(-1) != y).double().mean().item(), "nll": nll}


def means(
    rows: Iterable[Mapping[str, Any]], by: Sequence[str], quantity: str
) -> dict[tuple[Any, ...], float]:
    """Return the mean of a quantity over rows that agree in the fields `by`.

    None counts as infinite.
    """
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        value = math.inf if row[quantity] is None else row[quantity]
        groups.setdefault(tuple(row[name] for name in by), []).append(value)
    return {key: statistics.fmean(values) for key, values in groups.items()}
