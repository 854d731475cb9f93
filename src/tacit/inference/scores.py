"""Metrics of a model on a dataset, accumulated batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.data.batches import Batch, Batches
from tacit.inference.functions import Functions, functions_of, likelihood_of
from tacit.likelihood import Categorical, DiscreteLikelihood, Likelihood
from tacit.likelihood.predictive import BinaryPredictive, ClassPredictive, Predictive
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

    Predictions are made batch by batch and not stored, which bounds memory; of dense outputs, such
    as pixels, only sums are kept beyond a million positions (see `tacit.metrics.Streaming`). In
    distributed runs each process evaluates all data.

    Args:
        model: A variational model, a plain network, or a predictor from `tacit.methods`.
        data: Inputs and targets: a pair of tensors or arrays, a Dataset or a DataLoader.
        samples: Number of functions.
        likelihood: Likelihood of the outputs; the model's own by default.
        foreign: Out-of-distribution inputs; adds metrics of how well the entropy, and if functions
            differ the mutual information, separates them from the data. Of several labels per
            input, the mean is used.
        batch_size: Examples per forward pass.
        chunk_size: Number of functions to run at a time, to bound memory.
        generator: Source of randomness for drawing the functions; without one, results vary
            slightly between calls.

    Returns:
        For classification `nll`, `accuracy`, `ece`, `adaptive_ece`, `aurc`, `brier`,
        `classwise_ece`, with more than five classes also `top5`, with `foreign` also `ood_auroc`,
        `ood_fpr95` and `ood_auroc_mutual_information`; for dense outputs of up to 1,000 classes
        also `miou` and the intersection over union of each class, `iou_cat`, which is NaN if the
        class doesn't occur; for regression `nll`, `rmse`, `crps`, `coverage_90`,
        `interval_score_90`, with 2 to 20 outputs also `rmse_0`, `coverage_90_0` and so on for each
        output. They print as a table.

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
        found = collect(functions, likelihood, inside, uncertainties=outside is not None)
        scores = found.compute(class_names_of(likelihood))
        if outside is not None:
            others = collect(functions, likelihood, outside)
            entropies, information = ((found[name], others[name]) for name in UNCERTAINTIES)
            scores.update(ood_auroc=auroc(*entropies), ood_fpr95=fpr95(*entropies))
            if any(values.any() for values in information):  # 0 for a single function
                scores["ood_auroc_mutual_information"] = auroc(*information)
    return scores


def class_names_of(likelihood: Likelihood) -> tuple[str, ...] | None:
    """Return the names of the classes, if there are classes and they have names."""
    return likelihood.class_names if isinstance(likelihood, Categorical) else None


def collect(
    functions: Functions, likelihood: Likelihood, data: Batches, *, uncertainties: bool = True
) -> Streaming:
    """Return the statistics that the metrics need; for inputs without targets, the entropies.

    Args:
        functions: The functions.
        likelihood: Likelihood of their outputs.
        data: The data.
        uncertainties: Whether to keep the uncertainties of each input.
    """
    (collected,) = collect_each(functions, [likelihood], data, uncertainties=uncertainties)
    return collected


def collect_each(
    functions: Functions,
    likelihoods: Sequence[Likelihood],
    data: Batches,
    *,
    uncertainties: bool = True,
) -> list[Streaming]:
    """Return the statistics of `collect` for several likelihoods, from one pass over the data."""
    collected = [Streaming() for _ in likelihoods]
    for batch in data.epoch():
        outputs = functions(batch)
        targets = targets_of(batch, data.name).to(outputs.device) if data.targets else None
        for likelihood, streaming in zip(likelihoods, collected, strict=True):
            found = predictive_for(likelihood, outputs, targets)
            if uncertainties and isinstance(found, ClassPredictive | BinaryPredictive):
                streaming.update({name: _by_input(getattr(found, name)) for name in UNCERTAINTIES})
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


def _by_input(uncertainty: Tensor) -> Tensor:
    """Return the mean over the labels of each input, (B,)."""
    return uncertainty[..., None].flatten(1).mean(1)


def outputs_and_targets(
    model: nn.Module, data: Batches, *, samples: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Return the outputs of M functions (M, B, ...) and the targets, from one pass over data."""
    with functions_of(model, samples=samples, generator=generator) as functions:
        pairs = [(functions(batch), targets_of(batch, data.name)) for batch in data.epoch()]
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
