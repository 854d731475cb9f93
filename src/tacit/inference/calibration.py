"""Calibration: match predicted probabilities to frequencies on validation data."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.data.batches import Batches
from tacit.inference.functions import likelihood_of
from tacit.inference.isotonic import CLASS_EXAMPLES, class_map, distribution_map
from tacit.inference.scores import outputs_and_targets
from tacit.inference.temperatures import best_temperatures, cross_entropy
from tacit.likelihood import (
    Categorical,
    ContinuousLikelihood,
    DiscreteLikelihood,
    HomoscedasticLikelihood,
    Likelihood,
)
from tacit.likelihood.discrete import Scope, check_scope
from tacit.likelihood.predictive import average_log_probs, check_labels

CalibrationMethod: TypeAlias = Literal["temperature", "vector", "scale", "isotonic"]

SCALE_EXAMPLES = 10  # fewest validation examples for a noise scale
ISOTONIC_EXAMPLES = 100  # fewest validation targets for isotonic regression


@dataclass(frozen=True)
class Calibration:
    """Result of `calibrate`.

    Args:
        method: How the predictions were calibrated.
        nll_before: Validation NLL before: with T = 1, or with the noise scale from training.
        nll: Validation NLL after calibration, never larger than `nll_before`, except for classes
            with "isotonic", and where predicted noise scales are raised for coverage.
        examples: Number of validation targets; an example may have several.
        temperature: The temperature T; with "vector" the best single temperature, from which the
            search for the others started. None for the other methods.
        scope: What the temperature divides; None for the other methods.
        coverage_90_before: For real targets: share of the validation targets within their 90 %
            intervals before calibration.
        coverage_90: For real targets: the same after calibration.

    Examples:
        >>> import tacit, torch
        >>> logits = torch.tensor([[4.0, 0.0]]).repeat(200, 1)  # confidence 0.98
        >>> labels = (torch.arange(200) >= 150).long()  # accuracy 0.75
        >>> likelihood = tacit.Categorical()
        >>> found = tacit.calibrate(torch.nn.Identity(), (logits, labels), likelihood=likelihood)
        >>> round(found.temperature, 1), found.nll < found.nll_before
        (3.5, True)
    """

    method: CalibrationMethod
    nll_before: float
    nll: float
    examples: int
    temperature: float | None = None
    scope: Scope | None = None
    coverage_90_before: float | None = None
    coverage_90: float | None = None


def calibrate(
    model: nn.Module,
    validation: Any,
    *,
    method: CalibrationMethod | None = None,
    samples: int = 32,
    scope: Scope = "logits",
    likelihood: Likelihood | None = None,
    batch_size: int = 1024,
    generator: torch.Generator | None = None,
) -> Calibration:
    """Calibrate the predictions of a model on validation data, which it was not trained on.

    Predictions are computed in one pass over the data. The calibration is part of the likelihood,
    is saved with it, and replaces an earlier one; training with `tacit.fit` removes it.

    For classes and binary targets:

    - "temperature" (the default) divides the logits by a temperature T, the minimiser of the NLL.
      It is positive, bounded, and never increases the NLL of these data over T = 1. A standard
      normal prior on log T keeps it near 1 for small data.
    - "vector" fits a temperature and an offset per class, with a prior around the single
      temperature. It needs examples of every class. For `Categorical` only.
    - "isotonic" maps the probability of each class by isotonic regression against the rest and
      normalises the result (Zadrozny and Elkan, 2002). It can repair any increasing distortion, but
      overfits small data: it needs at least 100 targets, 10 of each class, and should have 1000.
      Maps have constant pieces, so confidences may tie; with more than two classes, labels can
      change, and normalised probabilities are calibrated only approximately. Entropies of the
      individual functions don't change.

    For real targets:

    - "scale" (the default) sets the noise scale by maximum likelihood, with a prior worth 5
      examples: one for each output, or for the heteroscedastic likelihoods a factor of the
      predicted scales, which is raised until 90 % intervals contain 90 % of these targets, if they
      don't. It needs 10 examples.
    - "isotonic" sets the scale if it is not fixed, then maps the distribution function of each
      output to its distribution on the data (Kuleshov et al., 2018): predictive distributions then
      have any shape, the same for all inputs up to location and scale. It needs at least 100
      examples. An output whose predictions are calibrated up to sampling error keeps them exactly.
      Beyond the outermost targets the tails are those of the likelihood's noise.

    Several labels of an example count as examples of one problem; several real targets of an
    example have a map each.

    Args:
        model: A variational model, a plain network, or a predictor from `tacit.methods`.
        validation: A pair of tensors or arrays, a Dataset or a DataLoader.
        method: How to calibrate; by default "temperature" or "scale".
        samples: Number of functions drawn from a variational model.
        scope: What a temperature divides: "logits" all logits; "mean" their mean over functions
            only, keeping the deviations from it, as in the theory.
        likelihood: Likelihood of a model without one, which is calibrated.
        batch_size: Examples per forward pass.
        generator: Source of randomness for drawing the functions.

    Returns:
        The NLL before and after, with the temperature or the coverage of 90 % intervals.

    Raises:
        ValueError: If the method doesn't fit the likelihood, there are too few data, or numbers are
            not finite.

    Examples:
        >>> import tacit, torch
        >>> x, noise = torch.randn(2, 500, 1, generator=torch.Generator().manual_seed(0))
        >>> model, likelihood = torch.nn.Identity(), tacit.Gaussian(scale=1.0)
        >>> found = tacit.calibrate(model, (x, x + 0.1 * noise), likelihood=likelihood)
        >>> found.method, round(found.coverage_90_before, 2), round(found.coverage_90, 2)
        ('scale', 1.0, 0.9)
    """
    found = likelihood_of(model, likelihood)
    method = _method(method, scope, found)
    batches = Batches("validation", validation, checks.positive_integer("batch_size", batch_size))
    outputs, targets = outputs_and_targets(model, batches, samples=samples, generator=generator)
    if not outputs.isfinite().all():
        raise ValueError("calibrate: the model's outputs are not finite.")
    if isinstance(found, DiscreteLikelihood):
        return _calibrate_classes(found, method, scope, outputs, targets)
    assert isinstance(found, ContinuousLikelihood)
    return _calibrate_numbers(found, method, outputs.double(), targets)


def _method(method: CalibrationMethod | None, scope: Scope, given: Likelihood) -> CalibrationMethod:
    """Return the method, or raise an error if it doesn't fit the likelihood."""
    check_scope(scope)
    if isinstance(given, DiscreteLikelihood):
        known = ["temperature", "isotonic"]
        if isinstance(given, Categorical):
            known.insert(1, "vector")
    elif isinstance(given, ContinuousLikelihood):
        known = ["scale", "isotonic"]
    else:
        raise TypeError(
            "calibrate: expected a Categorical, Bernoulli, Gaussian or HeteroscedasticGaussian "
            f"likelihood, received {given!r}."
        )
    if method is not None and method not in get_args(CalibrationMethod):
        expected = ", ".join(get_args(CalibrationMethod))
        raise ValueError(f"method: expected {expected}; received {method!r}.")
    chosen: Any = known[0] if method is None else method
    if chosen not in known:
        expected = " or ".join([", ".join(known[:-1]), known[-1]])
        raise ValueError(
            f"method: expected {expected} for {type(given).__name__}, received {method!r}."
        )
    if scope != "logits" and chosen not in ("temperature", "vector"):
        raise ValueError(f"scope: applies to temperatures only, received {scope!r} with {chosen}.")
    if chosen == "scale" and _has_fixed_scale(given):
        name = type(given).__name__
        raise ValueError(
            f"calibrate: the scale of {name}(learn=False) is fixed. Use {name}(), whose scale is "
            'set, or method="isotonic", which keeps it.'
        )
    return chosen  # type: ignore[no-any-return]


def _calibrate_classes(
    likelihood: DiscreteLikelihood,
    method: CalibrationMethod,
    scope: Scope,
    outputs: Tensor,
    targets: Tensor,
) -> Calibration:
    logits, targets = likelihood.as_classes(outputs, targets)
    logits = logits.double()
    if not targets.is_floating_point() or targets.ndim == 1:
        check_labels(targets, logits.shape[-1])
        targets = targets.long()
    names = likelihood.class_names if isinstance(likelihood, Categorical) else None
    if method == "isotonic":
        _check_number(len(targets), ISOTONIC_EXAMPLES, "isotonic", "targets")
        _check_classes(method, targets, logits.shape[-1], CLASS_EXAMPLES, names)
        log_probs = average_log_probs(logits, likelihood.averaging)
        found = class_map(log_probs.exp(), targets)
        likelihood.set_temperature(1.0)
        likelihood.set_recalibration(found)
        before, after = (
            cross_entropy(each, targets).item() for each in (log_probs, found.normalised(log_probs))
        )
        return Calibration(method, before, after, len(targets))
    if method == "vector":
        _check_classes(method, targets, logits.shape[-1], 1, names)
    best = best_temperatures(
        logits, targets, likelihood.averaging, scope, per_class=method == "vector"
    )
    offsets = [] if best.offset is None else [best.offset]
    likelihood.set_temperature(best.temperature, scope, *offsets)
    return Calibration(method, best.nll_before, best.nll, len(targets), best.single, scope)


@torch.no_grad()
def _calibrate_numbers(
    likelihood: ContinuousLikelihood, method: CalibrationMethod, outputs: Tensor, targets: Tensor
) -> Calibration:
    if not targets.isfinite().all():
        raise ValueError("validation: some targets are not finite; leave these examples out.")
    needed = ISOTONIC_EXAMPLES if method == "isotonic" else SCALE_EXAMPLES
    _check_number(len(targets), needed, method, "examples")
    kept = copy.deepcopy(likelihood.state_dict())
    likelihood.set_recalibration(None)

    def scores() -> tuple[float, float]:
        found = likelihood.predictive(outputs)
        return -found.log_prob(targets).mean().item(), found.coverage(targets)

    try:
        before = after = scores()
        if not _has_fixed_scale(likelihood):
            trained = copy.deepcopy(likelihood.state_dict())
            likelihood.fit_scale(outputs, targets)
            after = scores()
            if not after[0] <= before[0]:  # the prior may increase the NLL
                likelihood.load_state_dict(trained)
            likelihood.ensure_coverage(outputs, targets)
            after = scores()
        if method == "isotonic":
            pit = likelihood.predictive(outputs).cdf(targets)
            likelihood.set_recalibration(distribution_map(pit, ISOTONIC_EXAMPLES // 2))
            after = scores()
    except Exception:
        likelihood.load_state_dict(kept)
        raise
    return Calibration(
        method, before[0], after[0], targets.numel(),
        coverage_90_before=before[1], coverage_90=after[1],
    )  # fmt: skip


def _has_fixed_scale(likelihood: Likelihood) -> bool:
    return isinstance(likelihood, HomoscedasticLikelihood) and not likelihood.learn


def _check_number(found: int, needed: int, method: str, noun: str) -> None:
    if found < needed:
        raise ValueError(
            f"calibrate: {method} needs at least {needed} validation {noun}, received {found}."
        )


def _check_classes(
    method: str, targets: Tensor, classes: int, least: int, names: tuple[str, ...] | None
) -> None:
    """Raise ValueError unless there are enough examples of every class."""
    counts = targets.sum(0) if targets.is_floating_point() else targets.bincount(minlength=classes)
    few = (counts < least).nonzero().flatten().tolist()
    if few:
        listed = ", ".join(f"{names[k] if names else k} ({counts[k]:g})" for k in few[:10])
        raise ValueError(
            f"calibrate: {method} needs validation data with at least {least} of every class; "
            f"there are fewer of class {listed}."
        )
