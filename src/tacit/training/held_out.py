"""Validation data: a trial before training, the noise scale and the scores after each epoch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tacit.calling import Variational
from tacit.data.batches import Batch, Batches
from tacit.inference.functions import Functions, functions_of
from tacit.inference.scores import collect, outputs_and_targets, predictive_for, targets_of
from tacit.likelihood import Bernoulli, ContinuousLikelihood, Likelihood
from tacit.likelihood.predictive import ClassPredictive, check_binary, check_labels
from tacit.training.checkpoints import preserved_random_state
from tacit.training.run import Run

EVALUATION_SAMPLES, EVALUATION_BATCH = 8, 1024
SCALE_SAMPLES, SCALE_EXAMPLES = 32, 20_000  # functions and examples that decide a noise scale
SHOWN = ("nll", "accuracy", "ece", "rmse", "crps", "coverage_90")  # scores in the history


def check_validation(
    model: nn.Module, likelihood: Likelihood, data: Batches, device: torch.device
) -> None:
    """Score the mean weights on the first batch; for data in memory, check all labels.

    Modes and random states are restored.

    Args:
        model: The model to train, on its device.
        likelihood: The likelihood of its outputs.
        data: The validation data.
        device: The device of the model.

    Raises:
        ValueError: If the data don't fit the outputs or the likelihood.
        TypeError: If the targets are of the wrong type.
    """
    net = model.module if isinstance(model, Variational) else model
    try:
        with preserved_random_state(device), functions_of(net, samples=1) as functions:
            batch = next(iter(data.epoch()))
            outputs, targets = functions(batch), targets_of(batch, data.name)
            found = predictive_for(likelihood, outputs, targets.to(device))
            found.errors(targets.to(device))
        whole = None if data.memory is None else data.memory.targets
        if whole is not None and isinstance(found, ClassPredictive):
            check_labels(whole, found.logits.shape[-1], found.ignore_index)
        elif whole is not None and isinstance(likelihood, Bernoulli):
            check_binary(whole)
    except (ValueError, TypeError) as error:
        prefix = "" if str(error).startswith(f"{data.name}: ") else f"{data.name}: "
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{prefix}{error}") from error


def fit_scale(run: Run, data: Batches, samples: int = SCALE_SAMPLES, *, final: bool = True) -> None:
    """Set the noise scale of real targets to its optimum on some data.

    Args:
        run: The run.
        data: Held-out data, or else training data, of which a part is used.
        samples: Number of functions.
        final: Whether intervals must also contain their share. Not while training: the likelihood
            alone tells better when to stop.
    """
    if not run.fits_scale or not isinstance(run.likelihood, ContinuousLikelihood):
        return
    generator = torch.Generator(device=run.device).manual_seed(0)
    with preserved_random_state(run.device):
        found = outputs_and_targets(
            run.raw, data, samples=samples, generator=generator, most=SCALE_EXAMPLES
        )
    run.likelihood.fit_scale(*found)
    if final:
        run.likelihood.ensure_coverage(*found)
    if run.fabric.world_size > 1:  # batch norm may differ between processes
        run.likelihood.load_state_dict(run.fabric.broadcast(run.likelihood.state_dict()))


def evaluate_run(run: Run, data: Batches) -> dict[str, float]:
    """Return NLL and accuracy or error on held-out data, with the same draws every time.

    Raises:
        FloatingPointError: If an output is NaN.
    """
    fit_scale(run, data, EVALUATION_SAMPLES, final=False)
    generator = torch.Generator(device=run.device).manual_seed(0)
    # A DataLoader draws from the global generator, which would change the draws of training.
    with (
        preserved_random_state(run.device),
        functions_of(run.raw, samples=EVALUATION_SAMPLES, generator=generator) as functions,
    ):
        scores = collect(_without_nan(functions), run.likelihood, data).compute()
    found = {name: value for name, value in scores.items() if name in SHOWN}
    return dict(run.fabric.broadcast(found))  # batch norm may differ between processes


def _without_nan(functions: Functions) -> Functions:
    def call(batch: Batch) -> Tensor:
        outputs = functions(batch)
        if outputs.isnan().any():
            raise FloatingPointError("an output is NaN")
        return outputs

    return call
