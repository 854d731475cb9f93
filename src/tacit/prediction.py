"""From a model and inputs to predictions with uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tacit import _checks
from tacit.batches import Batch, Batches
from tacit.likelihood import Likelihood
from tacit.predictive import Averaging, BinaryPredictive, ClassPredictive, Predictive
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
        model: A variational model or a plain network.
        inputs: A tensor or array, a dict or tuple of them for a network with several inputs,
            `tacit.data.Images`, or a Dataset or DataLoader of inputs or of (inputs, targets).
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
    outputs = sampled_outputs(
        model, batches.epoch(), samples=samples, chunk_size=chunk_size, generator=generator
    )
    with torch.no_grad():
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
    batch_size: int = 1024,
    generator: torch.Generator | None = None,
) -> dict[str, float]:
    """Return how good a model's predictions are on data: NLL, accuracy, calibration error, ...

    Args:
        model: A variational model or a plain network.
        data: A pair of tensors or arrays, a Dataset or a DataLoader, of inputs and targets.
        samples: Number of functions.
        likelihood: What the outputs mean; the model's own if left out.
        batch_size: Examples in a pass.
        generator: Source of randomness of the functions.

    Returns:
        For classes `nll`, `accuracy` and `ece`; for numbers `nll`, `rmse`, `crps`, `coverage_90`.
    """
    likelihood = likelihood_of(model, likelihood)
    batches = Batches("data", data, _checks.positive_integer("batch_size", batch_size))
    outputs, targets = outputs_and_targets(model, batches, samples=samples, generator=generator)
    with torch.no_grad():
        return likelihood.predictive(outputs).scores(targets)


def outputs_and_targets(
    model: nn.Module, data: Batches, *, samples: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Return the outputs of M functions (M, B, ...) and the targets, from one pass over data."""
    targets: list[Tensor] = []

    def noted() -> Iterator[Batch]:
        for batch in data.epoch():
            targets.append(batch.targets)
            yield batch

    outputs = sampled_outputs(model, noted(), samples=samples, generator=generator)
    return outputs, torch.cat(targets).to(outputs.device)


@torch.no_grad()
def sampled_outputs(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    samples: int,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the outputs of M functions for all inputs, (M, B, ...); M is 1 for a plain network."""
    samples = _checks.positive_integer("samples", samples)
    modes = {module: module.training for module in model.modules()}
    like = next(model.parameters(), torch.zeros(()))
    model.eval()
    try:
        weights = None
        if isinstance(model, Variational):
            weights = model.sample(samples, generator=generator)
        outputs = []
        for batch in batches:
            if weights is None:
                outputs.append(_tensor(batch.call(model, like))[None])
            else:
                output = batch.call(model, like, weights=weights, chunk_size=chunk_size)
                outputs.append(_tensor(output))
    finally:
        for module, training in modes.items():
            module.training = training  # each its own: some may be frozen in eval mode
    if not sum(output.shape[1] for output in outputs):
        raise ValueError("inputs: there are no examples.")
    return torch.cat(outputs, dim=1)


def _tensor(output: Any) -> Tensor:
    logits = getattr(output, "logits", output)  # Hugging Face's outputs have it
    if not isinstance(logits, Tensor):
        raise TypeError(f"predict: expected a tensor as output, received {type(output).__name__}.")
    return logits
