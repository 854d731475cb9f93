"""From a model and inputs to predictions with uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from tacit import _checks
from tacit.batches import Batch, Batches
from tacit.likelihood import Bernoulli, Categorical, Likelihood
from tacit.metrics import Metrics, Streaming, auroc, fpr95
from tacit.predictive import Averaging, BinaryPredictive, ClassPredictive, Predictive
from tacit.predictor import Predictor, tensor_of
from tacit.variational import Variational


def predict(
    model: nn.Module,
    inputs: Any,
    *,
    samples: int = 32,
    likelihood: Likelihood | None = None,
    averaging: Averaging | None = None,
    batch_size: int = 1024,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Predictive:
    """Return predictions for inputs, with their uncertainty.

    A variational model draws `samples` functions once and applies the same ones to all inputs; a
    plain network is a single function. The model runs in eval mode, without gradients, and is left
    in the mode it had.

    Args:
        model: A variational model, a plain network, or what a method of `tacit.methods` learned.
        inputs: A tensor or array, or a dict of them for a network with several inputs;
            `tacit.data.Images`, a Dataset or a DataLoader. A pair is inputs and targets, and the
            targets are passed over: so inputs in a tuple are ((a, b), None).
        samples: Number of functions.
        likelihood: What the outputs mean; the model's own if left out.
        averaging: How functions are combined into probabilities, "log_probs", "probs" or "logits";
            as the likelihood says if left out.
        batch_size: Inputs in a pass.
        chunk_size: How many functions to run at a time, to bound memory.
        generator: Source of randomness of the functions.

    Examples:
        >>> import tacit, torch
        >>> net = torch.nn.Linear(4, 3)
        >>> model = tacit.variational(net, likelihood=tacit.Categorical(["a", "b", "c"]), rank=2)
        >>> prediction = tacit.predict(model, torch.randn(5, 4))
        >>> prediction.probs.shape, prediction.mutual_information.shape
        (torch.Size([5, 3]), torch.Size([5]))
    """
    likelihood = likelihood_of(model, likelihood)
    _checks.positive_integer("batch_size", batch_size)
    batches = Batches("inputs", inputs, batch_size, targets=False)
    with functions_of(
        model, samples=samples, chunk_size=chunk_size, generator=generator
    ) as functions:
        outputs = torch.cat([functions(batch) for batch in batches.epoch()], dim=1)
        found = likelihood.predictive(outputs)
    if averaging is None:
        return found
    if not isinstance(found, ClassPredictive | BinaryPredictive):
        raise ValueError("averaging is for probabilities; these are predictions of numbers.")
    return replace(found, averaging=averaging)


def likelihood_of(model: nn.Module, given: Likelihood | None) -> Likelihood:
    """Return the given likelihood, or else the model's own."""
    own = given if given is not None else getattr(model, "likelihood", None)
    if not isinstance(own, Likelihood):
        raise ValueError(
            "likelihood: the model has none; pass likelihood=tacit.Categorical() (or Bernoulli, "
            "Gaussian, HeteroscedasticGaussian), or give it to tacit.variational."
        )
    return own


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
    _checks.positive_integer("batch_size", batch_size)
    if foreign is not None and not isinstance(likelihood, Categorical | Bernoulli):
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


Functions: TypeAlias = Callable[[Batch], Tensor]
"""From a batch to the outputs of M functions, (M, B, ...)."""


@contextmanager
def functions_of(
    model: nn.Module,
    *,
    samples: int,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Functions]:
    """Draw M functions of a model once, to be used on many batches; a plain network is one.

    Meanwhile the model is in eval mode and gradients are off; then all is as it was.
    """
    _checks.positive_integer("samples", samples)
    modes = {module: module.training for module in model.modules()}
    like = next(model.parameters(), torch.zeros(()))
    model.eval()
    try:
        with torch.no_grad():
            if isinstance(model, Predictor):
                functions = model.functions(
                    samples=samples, chunk_size=chunk_size, generator=generator
                )
                yield lambda batch: batch.call(functions, like)
            elif isinstance(model, Variational):
                weights = model.sample(samples, generator=generator)
                yield lambda batch: tensor_of(
                    batch.call(model, like, weights=weights, chunk_size=chunk_size)
                )
            else:
                yield lambda batch: tensor_of(batch.call(model, like))[None]
    finally:
        for module, training in modes.items():
            module.training = training  # each its own: some may be frozen in eval mode


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
