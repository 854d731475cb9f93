"""A trial of the validation data before training, so that errors don't cost an epoch."""

from __future__ import annotations

import torch
from torch import nn

from tacit.calling import Variational
from tacit.data.batches import Batches
from tacit.inference.functions import functions_of
from tacit.inference.scores import predictive_for, targets_of
from tacit.likelihood import Bernoulli, Likelihood
from tacit.likelihood.predictive import ClassPredictive, check_binary, check_labels
from tacit.training.checkpoints import preserved_random_state


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
