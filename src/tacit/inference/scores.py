"""How good a model's predictions are on data, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.data.batches import Batches
from tacit.inference.functions import Functions, functions_of, likelihood_of
from tacit.likelihood import DiscreteLikelihood, Likelihood
from tacit.likelihood.predictive import BinaryPredictive, ClassPredictive
from tacit.metrics import Metrics, Streaming, auroc, fpr95


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
    """Return how good a model's predictions are on data: NLL, accuracy, calibration error, ...

    Predictions are made batch by batch and not kept, so that memory doesn't grow with the data.
    Under several processes each evaluates all data by itself.

    Args:
        model: A variational model, a plain network, or what a method of `tacit.methods` learned.
        data: A pair of tensors or arrays, a Dataset or a DataLoader, of inputs and targets.
        samples: Number of functions.
        likelihood: What the outputs mean; the model's own if left out.
        foreign: Inputs of another kind, which a classifier should be less sure of: how well the
            entropy tells them from the data is then measured too.
        batch_size: Examples in a pass.
        chunk_size: How many functions to run at a time, to bound memory.
        generator: Source of randomness of the functions; without one, numbers differ a little each
            time.

    Returns:
        For classes `nll`, `accuracy`, `ece`, `adaptive_ece`, `aurc`, `brier`, `classwise_ece`, with
        more than five also `top5`, with `foreign` also `ood_auroc` and `ood_fpr95`; for numbers
        `nll`, `rmse`, `crps`, `coverage_90`, `interval_score_90`. They print as a table.

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
        raise ValueError("foreign: predicted numbers have no entropy to tell inputs apart.")
    known = Batches("data", data, batch_size)
    others = None if foreign is None else Batches("foreign", foreign, batch_size, targets=False)
    with functions_of(
        model, samples=samples, chunk_size=chunk_size, generator=generator
    ) as functions:
        found = collect(functions, likelihood, known)
        scores = found.compute()
        if others is not None:
            strange = collect(functions, likelihood, others)
            pair = found["entropy"], strange["entropy"]
            scores.update(ood_auroc=auroc(*pair), ood_fpr95=fpr95(*pair))
    return scores


def collect(functions: Functions, likelihood: Likelihood, data: Batches) -> Streaming:
    """Return what metrics need of predictions for data; of inputs alone, their entropies."""
    (collected,) = collect_each(functions, [likelihood], data)
    return collected


def collect_each(
    functions: Functions, likelihoods: Sequence[Likelihood], data: Batches
) -> list[Streaming]:
    """Return the same for several likelihoods, from one pass over the data."""
    collected = [Streaming() for _ in likelihoods]
    for batch in data.epoch():
        outputs = functions(batch)
        for likelihood, known in zip(likelihoods, collected, strict=True):
            found = likelihood.predictive(outputs)
            if isinstance(found, ClassPredictive | BinaryPredictive):
                known.update({"entropy": found.entropy})
            if data.targets:
                targets = batch.targets.to(outputs.device)
                known.update(found.errors(targets), found.sums(targets))
    return collected


def outputs_and_targets(
    model: nn.Module, data: Batches, *, samples: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Return the outputs of M functions (M, B, ...) and the targets, from one pass over data."""
    with functions_of(model, samples=samples, generator=generator) as functions:
        pairs = [(functions(batch), batch.targets) for batch in data.epoch()]
    outputs = torch.cat([output for output, _ in pairs], dim=1)
    return outputs, torch.cat([targets for _, targets in pairs]).to(outputs.device)
