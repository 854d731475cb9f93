"""Temperature and vector scaling: the temperatures that minimise the NLL of validation data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tacit.likelihood.discrete import Scope, scaled_logits
from tacit.likelihood.predictive import Averaging, average_log_probs

BOUND = math.log(100)  # bound of |log T| and |offset|: temperatures lie between 1/100 and 100
CONVERGED = 1e-4  # largest gradient of the NLL, in nats, that counts as converged


@dataclass(frozen=True, eq=False)
class Temperatures:
    """The best temperatures.

    Attributes:
        single: The best single temperature.
        temperature: The temperature, or one for each class, (C,).
        offset: Offset of each class, (C,), if there is one temperature for each.
        nll_before: NLL with T = 1.
        nll: NLL with these temperatures and offsets.
    """

    single: float
    temperature: Tensor
    offset: Tensor | None
    nll_before: float
    nll: float


def best_temperatures(
    logits: Tensor, targets: Tensor, averaging: Averaging, scope: Scope, *, per_class: bool
) -> Temperatures:
    """Return the temperatures that minimise the NLL, with a prior that keeps them near 1.

    Args:
        logits: (M, N, C), in double precision.
        targets: Labels (N,), or probabilities of the classes (N, C).
        averaging: How the functions are combined.
        scope: What the temperature divides.
        per_class: Whether each class has its own temperature and offset.
    """

    def nll(log_temperature: Tensor, offset: Tensor | None = None) -> Tensor:
        scaled = scaled_logits(logits, log_temperature.exp(), scope, offset)
        return cross_entropy(average_log_probs(scaled, averaging), targets)

    def regularised(log_temperature: Tensor) -> Tensor:
        # Standard normal prior on log T: few data, or only correct predictions, move it little.
        return nll(log_temperature) + log_temperature.square() / (2 * len(targets))

    grid = logits.new_tensor([0, *(BOUND * (i / 10 - 1) for i in range(21))])
    (single,) = best = _minimum(regularised, min(grid, key=lambda x: regularised(x).item()))
    if abs(single) > 0.99 * BOUND:
        warnings.warn(
            f"calibrate: the temperature is at its bound, {single.exp().item():.3g}.", stacklevel=3
        )
    if per_class:
        each = single.expand(logits.shape[-1])

        def penalised(log_temperature: Tensor, offset: Tensor) -> Tensor:
            # Normal prior around the single temperature and zero offsets.
            moved = (log_temperature - each).square().sum() + offset.square().sum()
            return nll(log_temperature, offset) + moved / (2 * len(targets))

        best = _minimum(penalised, each, torch.zeros_like(each))
    before, after = nll(grid[0]).item(), nll(*best).item()
    offset = best[1] if per_class else None
    return Temperatures(single.exp().item(), best[0].exp(), offset, before, after)


def cross_entropy(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy with labels (N,) or probabilities of the classes (N, C)."""
    if targets.is_floating_point():
        return -torch.where(targets > 0, targets * log_probs, 0.0).sum(-1).mean()
    return F.nll_loss(log_probs, targets)


def _minimum(nll: Callable[..., Tensor], *start: Tensor) -> list[Tensor]:
    """Return a minimiser within the bounds, found by L-BFGS; never worse than `start`."""
    free = [torch.atanh(x / BOUND * 0.999).requires_grad_() for x in start]
    optimizer = torch.optim.LBFGS(
        free, max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-13,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = nll(*(BOUND * x.tanh() for x in free))
        value.backward()
        return value

    optimizer.step(closure)
    closure()
    slope = max(x.grad.abs().max().item() for x in free if x.grad is not None)
    found = [BOUND * x.detach().tanh() for x in free]
    if not slope < CONVERGED:
        warnings.warn(f"calibrate: L-BFGS did not converge, slope {slope:.2g}.", stacklevel=4)
    return found if nll(*found) <= nll(*start) else list(start)
