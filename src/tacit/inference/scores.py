"""Metrics of a model on a dataset, accumulated batch by batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.data.batches import Batch, Batches
from tacit.inference.distances import FeatureDistance
from tacit.inference.functions import Functions, functions_of, likelihood_of
from tacit.likelihood import Categorical, Likelihood
from tacit.likelihood.predictive import ClassPredictive, Predictive, RegressionPredictive
from tacit.metrics import Metrics, Streaming, aupr, auroc, fpr95

ROUNDING = 1e-6  # relative differences of scores up to this are rounding errors


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    samples: int = 32,
    likelihood: Likelihood | None = None,
    foreign: Any = None,
    distance: FeatureDistance | Mapping[str, FeatureDistance] | None = None,
    batch_size: int = 1024,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Metrics:
    """Return the metrics of a model's predictions on data: NLL, accuracy, calibration error, ...

    Predictions are made batch by batch and not stored, which bounds memory; of dense outputs, such
    as pixels, only sums are kept beyond a million positions (see `tacit.metrics.Streaming`). In
    distributed runs each process evaluates all data.

    Args:
        model: A variational model, a plain network, or a predictor from `tacit.methods`.
        data: Inputs and targets: a pair of tensors or arrays, a Dataset or a DataLoader.
        samples: Number of functions.
        likelihood: Likelihood of the outputs; the model's own by default.
        foreign: Inputs unlike the training data (out-of-distribution); adds metrics of how well
            each score of uncertainty separates them from the data. Scores of several targets per
            example, or of pixels, are averaged over them.
        distance: With `foreign`, distances from `tacit.inference.feature_distance` as further
            scores: one, named "distance", or several by name.
        batch_size: Examples per forward pass.
        chunk_size: Number of functions to run at a time, to bound memory.
        generator: Source of randomness for drawing the functions; without one, results vary
            slightly between calls.

    Returns:
        For classification `nll`, `accuracy`, `ece`, `adaptive_ece`, `aurc`, `brier`,
        `classwise_ece`, with more than five classes also `top5`, for dense outputs of up to 1,000
        classes also `miou` and the intersection over union of each class, `iou_cat`, which is NaN
        if the class doesn't occur; for regression `nll`, `rmse`, `crps`, `coverage_90`,
        `interval_score_90`, with 2 to 20 outputs also `rmse_0`, `coverage_90_0` and so on for each
        output. With `foreign` also `ood_auroc`, `ood_fpr95` and `ood_aupr`, in which the
        foreign inputs are the positive class, by entropy or, for regression, by
        standard deviation; and the same for the other scores that differ between inputs, such as
        `ood_auroc_mutual_information`. They print as a table.

    Examples:
        >>> import tacit, torch
        >>> net, x = torch.nn.Linear(2, 2), torch.randn(8, 2)
        >>> found = tacit.evaluate(net, (x, net(x).argmax(-1)), likelihood=tacit.Categorical())
        >>> found["accuracy"], found["aurc"]
        (1.0, 0.0)
    """
    likelihood = likelihood_of(model, likelihood)
    checks.positive_integer("batch_size", batch_size)
    distances = _distances(distance, foreign)
    names = () if foreign is None else None
    inside = Batches("data", data, batch_size)
    outside = None if foreign is None else Batches("foreign", foreign, batch_size, targets=False)
    with functions_of(
        model, samples=samples, chunk_size=chunk_size, generator=generator
    ) as functions:
        found = collect(functions, likelihood, inside, names, distances)
        scores = found.compute(class_names_of(likelihood))
        if outside is not None:
            others = collect(functions, likelihood, outside, names, distances)
            scores.update(detection(found.uncertainties, others.uncertainties))
    return scores


def class_names_of(likelihood: Likelihood) -> tuple[str, ...] | None:
    """Return the names of the classes, if there are classes and they have names."""
    return likelihood.class_names if isinstance(likelihood, Categorical) else None


def _distances(
    given: FeatureDistance | Mapping[str, FeatureDistance] | None, foreign: Any
) -> dict[str, FeatureDistance]:
    """Return the distances by name, or raise an error if they can't be used."""
    if given is None:
        return {}
    found = dict(given) if isinstance(given, Mapping) else {"distance": given}
    for name, each in found.items():
        if not isinstance(each, FeatureDistance):
            raise TypeError(
                "distance: expected distances from tacit.inference.feature_distance, received "
                f"{type(each).__name__}."
            )
        if name in {**ClassPredictive.uncertainties, **RegressionPredictive.uncertainties}:
            raise ValueError(f"distance: {name!r} is a score of the predictions; rename it.")
    if foreign is None:
        raise ValueError("distance: pass foreign= as well, the inputs to separate from the data.")
    return found


def detection(inside: Mapping[str, Tensor], outside: Mapping[str, Tensor]) -> Metrics:
    """Return how well each score separates outside from inside: AUROC, FPR95 and AUPR.

    The first score gives `ood_auroc` and so on, the others `ood_auroc_<name>`. A score that is the
    same for all inputs, like the mutual information of a single function, is left out; if it is the
    first, all inputs are tied.

    Args:
        inside: Scores of the data by name, each (A,).
        outside: Scores of foreign inputs by name, each (B,).
    """
    found = Metrics()
    for i, name in enumerate(inside):
        pair, suffix = (inside[name], outside[name]), f"_{name}" if i else ""
        if _same(torch.cat(pair)):
            if i:
                continue
            pair = torch.zeros_like(pair[0]), torch.zeros_like(pair[1])
        for metric in (auroc, fpr95, aupr):
            found[f"ood_{metric.__name__}{suffix}"] = metric(*pair)
    return found


def _same(scores: Tensor) -> bool:
    """Return whether scores are equal up to rounding errors."""
    low, high = scores.aminmax()
    spread, largest = (high - low).item(), max(high.abs().item(), low.abs().item())
    return math.isfinite(spread) and spread <= ROUNDING * largest


def collect(
    functions: Functions,
    likelihood: Likelihood,
    data: Batches,
    scores: Sequence[str] | None = (),
    distances: Mapping[str, FeatureDistance] | None = None,
) -> Streaming:
    """Return the statistics that the metrics need, and scores for ranking the inputs.

    Args:
        functions: Functions, from `functions_of`.
        likelihood: Likelihood of their outputs.
        data: The data; without targets only the scores are collected.
        scores: Names of scores of uncertainty; None for all that the predictions have.
        distances: Feature distances by name.
    """
    (collected,) = collect_each(functions, [likelihood], data, scores, distances)
    return collected


def collect_each(
    functions: Functions,
    likelihoods: Sequence[Likelihood],
    data: Batches,
    scores: Sequence[str] | None = (),
    distances: Mapping[str, FeatureDistance] | None = None,
) -> list[Streaming]:
    """Return the statistics of `collect` for several likelihoods, from one pass over the data."""
    collected = [Streaming() for _ in likelihoods]
    for batch in data.epoch():
        outputs = functions(batch)
        targets = targets_of(batch, data.name).to(outputs.device) if data.targets else None
        far = {name: distance.of_batch(batch) for name, distance in (distances or {}).items()}
        for likelihood, streaming in zip(likelihoods, collected, strict=True):
            found = predictive_for(likelihood, outputs, targets)
            names = found.uncertainties if scores is None else scores
            ranks = {name: by_example(found.uncertainty(name)) for name in names}
            streaming.update({}, uncertainties={**ranks, **far})
            if targets is not None:
                streaming.update(found.errors(targets), found.sums(targets))
    return collected


def predictive_for(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor | None = None
) -> Predictive:
    """Return the predictive distribution; targets determine an unknown class dimension."""
    if isinstance(likelihood, Categorical) and targets is not None:
        likelihood.find_class_dim(outputs, targets)
    return likelihood.predictive(outputs)


def by_example(scores: Tensor) -> Tensor:
    """Return one score for each example, (B,): the mean over its targets or positions."""
    return scores if scores.ndim == 1 else scores.flatten(1).mean(1)


def outputs_and_targets(
    model: nn.Module,
    data: Batches,
    *,
    samples: int,
    generator: torch.Generator | None = None,
    most: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the outputs of M functions (M, B, ...) and the targets, from one pass over data.

    Args:
        model: The model.
        data: Inputs and targets.
        samples: Number of functions.
        generator: Source of randomness for drawing the functions.
        most: Number of examples after which to stop, at the end of a batch.
    """
    pairs, count = [], 0
    with functions_of(model, samples=samples, generator=generator) as functions:
        for batch in data.epoch():
            pairs.append((functions(batch), targets_of(batch, data.name)))
            count += len(pairs[-1][1])
            if most is not None and count >= most:
                break
    outputs = torch.cat([output for output, _ in pairs], dim=1)
    return outputs, torch.cat([targets for _, targets in pairs]).to(outputs.device)


def targets_of(batch: Batch, name: str) -> Tensor:
    """Return the targets of a batch.

    Args:
        batch: The batch.
        name: Name of the data in the error message.

    Raises:
        TypeError: If the batch has no targets.
    """
    if not isinstance(batch.targets, Tensor):
        kind = type(batch.targets).__name__
        raise TypeError(
            f"{name}: expected a tensor of targets alongside the inputs, received {kind}. For "
            "predictions without targets use tacit.predict."
        )
    return batch.targets
