"""Temperature scaling: match a classifier's confidence to its accuracy on validation data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._support import checks
from tacit.data.batches import Batches
from tacit.inference.functions import likelihood_of
from tacit.inference.scores import outputs_and_targets
from tacit.likelihood import Categorical, DiscreteLikelihood
from tacit.likelihood.discrete import Scope, check_scope, scaled_logits
from tacit.likelihood.predictive import average_log_probs, check_labels

BOUND = math.log(100)  # bound of |log T| and |offset|: temperatures lie between 1/100 and 100
CONVERGED = 1e-4  # largest gradient of the NLL, in nats, that counts as converged


@dataclass(frozen=True)
class Calibration:
    """Result of `calibrate`.

    Args:
        temperature: The temperature T; with `per_class`, the best single temperature, from which
            the search for the others started.
        scope: What the temperature divides.
        nll_before: Validation NLL with T = 1.
        nll: Validation NLL after calibration, never larger than `nll_before`.
        examples: Number of validation targets; an example may have several.
    """

    temperature: float
    scope: Scope
    nll_before: float
    nll: float
    examples: int


def calibrate(
    model: nn.Module,
    validation: Any,
    *,
    samples: int = 32,
    scope: Scope = "logits",
    per_class: bool = False,
    likelihood: DiscreteLikelihood | None = None,
    batch_size: int = 1024,
    generator: torch.Generator | None = None,
) -> Calibration:
    """Set the temperature of a classifier's predictions to the optimum on validation data.

    The logits are computed in one pass over the data; the temperature is then optimised by L-BFGS
    in log T, from the best point of a coarse grid. It is positive, bounded, and never increases the
    NLL of these data over T = 1. A standard normal prior on log T keeps it near 1 for small data.

    Args:
        model: A variational model or a plain network.
        validation: A pair of tensors or arrays, a Dataset or a DataLoader.
        samples: Number of functions drawn from a variational model.
        scope: "logits" divides all logits by T. "mean" divides their mean over functions only and
            keeps the deviations from it, as in the theory.
        per_class: Whether to fit a temperature and an offset per class (vector scaling) instead of
            one temperature. It needs more data, with examples of every class; a prior keeps it near
            the single temperature for small data.
        likelihood: Likelihood of a model without one; its temperature is set.
        batch_size: Examples per forward pass.
        generator: Source of randomness for drawing the functions.

    Returns:
        The temperature, which is also set in the likelihood, and the NLL before and after.
    """
    found = likelihood_of(model, likelihood)
    if not isinstance(found, DiscreteLikelihood):
        raise TypeError(
            "calibrate: temperatures are for Categorical and Bernoulli likelihoods, received "
            f"{found!r}. A Gaussian learns its scale in training."
        )
    if per_class and not isinstance(found, Categorical):
        raise ValueError(f"per_class: expected a Categorical likelihood, received {found!r}.")
    check_scope(scope)
    logits, targets = _problem(model, found, validation, samples, batch_size, generator)
    if per_class:
        _check_every_class(targets, logits.shape[-1])

    def nll(log_temperature: Tensor, offset: Tensor | None = None) -> Tensor:
        scaled = scaled_logits(logits, log_temperature.exp(), scope, offset)
        return _cross_entropy(average_log_probs(scaled, found.averaging), targets)

    def regularised(log_temperature: Tensor) -> Tensor:
        # Standard normal prior on log T: few data, or only correct predictions, move it little.
        return nll(log_temperature) + log_temperature.square() / (2 * len(targets))

    grid = logits.new_tensor([0, *(BOUND * (i / 10 - 1) for i in range(21))])
    (single,) = best = _minimum(regularised, min(grid, key=lambda x: regularised(x).item()))
    if abs(single) > 0.99 * BOUND:
        warnings.warn(
            f"calibrate: the temperature is at its bound, {single.exp().item():.3g}.", stacklevel=2
        )
    if per_class:
        each = single.expand(logits.shape[-1])

        def penalised(log_temperature: Tensor, offset: Tensor) -> Tensor:
            # Normal prior around the single temperature and zero offsets.
            moved = (log_temperature - each).square().sum() + offset.square().sum()
            return nll(log_temperature, offset) + moved / (2 * len(targets))

        best = _minimum(penalised, each, torch.zeros_like(each))
    found.set_temperature(best[0].exp(), scope, *best[1:])
    before, after = nll(grid[0]).item(), nll(*best).item()
    return Calibration(single.exp().item(), scope, before, after, len(targets))


def _problem(
    model: nn.Module,
    likelihood: DiscreteLikelihood,
    validation: Any,
    samples: int,
    batch_size: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Return logits (M, N, C) in double precision and the targets of `as_classes`."""
    batches = Batches("validation", validation, checks.positive_integer("batch_size", batch_size))
    outputs, targets = outputs_and_targets(model, batches, samples=samples, generator=generator)
    outputs, targets = likelihood.as_classes(outputs, targets)
    if not targets.is_floating_point() or targets.ndim == 1:
        check_labels(targets, outputs.shape[-1])
        targets = targets.long()
    if not outputs.isfinite().all():
        raise ValueError("calibrate: the model's outputs are not finite.")
    return outputs.double(), targets


def _cross_entropy(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy with labels (N,) or probabilities of the classes (N, C)."""
    if targets.is_floating_point():
        return -(targets * log_probs).sum(-1).mean()
    return F.nll_loss(log_probs, targets)


def _check_every_class(labels: Tensor, classes: int) -> None:
    missing = (labels.bincount(minlength=classes) == 0).nonzero().flatten().tolist()
    if missing:
        names = ", ".join(map(str, missing[:10]))
        raise ValueError(f"per_class: the validation data have no examples of class {names}.")


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
        warnings.warn(f"calibrate: L-BFGS did not converge, slope {slope:.2g}.", stacklevel=3)
    return found if nll(*found) <= nll(*start) else list(start)
