"""Metrics of a model on a dataset, accumulated batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.data.batches import Batch, Batches
from tacit.inference.functions import Functions, functions_of, likelihood_of
from tacit.likelihood import DiscreteLikelihood, Likelihood
from tacit.likelihood.predictive import BinaryPredictive, ClassPredictive
from tacit.metrics import Metrics, Streaming, auroc, fpr95
from tacit.metrics.streaming import UNCERTAINTIES


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    samples: int = 32,
    likelihood: Likelihood | None = None,
    foreign: Any = None,
    batch_size: int = 1024,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Metrics:
    """Return the metrics of a model's predictions on data: NLL, accuracy, calibration error, ...

    Predictions are made batch by batch and not stored, which bounds memory. In distributed runs
    each process evaluates all data.

    Args:
        model: A variational model, a plain network, or a predictor from `tacit.methods`.
        data: Inputs and targets: a pair of tensors or arrays, a Dataset or a DataLoader.
        samples: Number of functions.
        likelihood: Likelihood of the outputs; the model's own by default.
        foreign: Out-of-distribution inputs; adds metrics of how well the entropy, and if functions
            differ the mutual information, separates them from the data.
        batch_size: Examples per forward pass.
        chunk_size: Number of functions to run at a time, to bound memory.
        generator: Source of randomness for drawing the functions; without one, results vary
            slightly between calls.

    Returns:
        For classification `nll`, `accuracy`, `ece`, `adaptive_ece`, `aurc`, `brier`,
        `classwise_ece`, with more than five classes also `top5`, with `foreign` also `ood_auroc`,
        `ood_fpr95` and `ood_auroc_mutual_information`; for regression `nll`, `rmse`, `crps`,
        `coverage_90`, `interval_score_90`. They print as a table.

    Examples:
        >>> import tacit, torch
        >>> net, x = torch.nn.Linear(2, 2), torch.randn(8, 2)
        >>> found = tacit.evaluate(net, (x, net(x).argmax(-1)), likelihood=tacit.Categorical())
        >>> found["accuracy"], found["aurc"]
        (1.0, 0.0)
    """
    likelihood = likelihood_of(model, likelihood)
    checks.positive_integer("batch_size", batch_size)
    if foreign is not None and not isinstance(likelihood, DiscreteLikelihood):
        raise ValueError("foreign: a regression has no predictive entropy to separate inputs by.")
    inside = Batches("data", data, batch_size)
    outside = None if foreign is None else Batches("foreign", foreign, batch_size, targets=False)
    with functions_of(
        model, samples=samples, chunk_size=chunk_size, generator=generator
    ) as functions:
        found = collect(functions, likelihood, inside)
        scores = found.compute()
        if outside is not None:
            others = collect(functions, likelihood, outside)
            entropies, information = ((found[name], others[name]) for name in UNCERTAINTIES)
            scores.update(ood_auroc=auroc(*entropies), ood_fpr95=fpr95(*entropies))
            if any(values.any() for values in information):  # 0 for a single function
                scores["ood_auroc_mutual_information"] = auroc(*information)
    return scores


def collect(functions: Functions, likelihood: Likelihood, data: Batches) -> Streaming:
    """Return the statistics that the metrics need; for inputs without targets, the entropies."""
    (collected,) = collect_each(functions, [likelihood], data)
    return collected


def collect_each(
    functions: Functions, likelihoods: Sequence[Likelihood], data: Batches
) -> list[Streaming]:
    """Return the statistics of `collect` for several likelihoods, from one pass over the data."""
    collected = [Streaming() for _ in likelihoods]
    for batch in data.epoch():
        outputs = functions(batch)
        for likelihood, streaming in zip(likelihoods, collected, strict=True):
            found = likelihood.predictive(outputs)
            if isinstance(found, ClassPredictive | BinaryPredictive):
                streaming.update({name: getattr(found, name) for name in UNCERTAINTIES})
            if data.targets:
                targets = targets_of(batch, data.name).to(outputs.device)
                streaming.update(found.errors(targets), found.sums(targets))
    return collected


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
