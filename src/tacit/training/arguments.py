"""The arguments of `fit`: validated, and converted for the training loop."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.calling import Variational
from tacit.calling.arguments import Draws, check_exclusive, number_of_draws
from tacit.calling.caller import has_batch_norm
from tacit.calling.draws import batch_first
from tacit.data.batches import Batches
from tacit.likelihood import DiscreteLikelihood, HeteroscedasticLikelihood, Likelihood
from tacit.scaling.optimizers import optimizer_family
from tacit.scaling.parametrization import Parametrization
from tacit.training.objective import Objective

LEARNING_RATES = {"sgd": 0.03, "adam": 0.002}  # by kind of optimizer, if none is given
DRAWS = 8  # default draws per step, chosen by the comparison in benchmarks/choices.py

Schedule: TypeAlias = Literal["cosine"] | Callable[[float], float] | None


def check_arguments(
    epochs: int | None,
    schedule: Schedule,
    average: float,
    validation: Any,
    early_stopping: int | None,
    resume: str,
    optimizer: str,
    parametrization: Parametrization | None,
    checkpoint: str | Path | None,
    callbacks: Sequence[Callable[..., Any]],
) -> None:
    """Raise an error for invalid or inconsistent arguments."""
    if early_stopping is not None and validation is None:
        raise ValueError("early_stopping needs validation data.")
    if epochs is None and validation is None:
        raise ValueError(
            "epochs: expected a number of passes, or validation data, on which fit chooses it."
        )
    if epochs is None and (schedule is not None or average or early_stopping is not None):
        raise ValueError(
            "schedule, average and early_stopping need a number of epochs; without one, training "
            "has a constant rate, averages the last tenth of the steps, and stops by itself."
        )
    if not isinstance(optimizer, str):
        raise TypeError(
            f"optimizer: expected a name such as 'sgd' or 'adam', received {optimizer!r}."
        )
    if parametrization is not None and not isinstance(parametrization, Parametrization):
        raise TypeError(
            "parametrization: expected tacit.Standard(), tacit.MaximalUpdate() or another "
            f"Parametrization, received {parametrization!r}."
        )
    if not isinstance(resume, str) or resume not in ("auto", "never"):
        raise ValueError(f"resume: expected 'auto' or 'never', received {resume!r}.")
    if checkpoint is not None and not isinstance(checkpoint, str | os.PathLike):
        raise TypeError(f"checkpoint: expected the path of a folder, received {checkpoint!r}.")
    if checkpoint is not None and Path(checkpoint).is_file():
        raise ValueError(f"checkpoint: expected a folder, but {checkpoint} is a file.")
    listed = isinstance(callbacks, Sequence) and not isinstance(callbacks, str)
    if not listed or not all(callable(callback) for callback in callbacks):
        raise TypeError(
            "callbacks: expected a list of functions of a row and the model, received "
            f"{callbacks!r}."
        )


def check_model(model: nn.Module, parametrization: Parametrization | None) -> None:
    """Raise an error for a model that can't be trained."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            "model: expected a model made by tacit.variational, or a network (nn.Module), "
            f"received {type(model).__name__}."
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            f"model: {type(model).__name__} has no parameters to train; expected at least one "
            "that requires gradients."
        )
    if isinstance(model, Variational) and parametrization is not None:
        raise ValueError(
            "parametrization: a variational model has its own; pass it to tacit.variational."
        )


def seed_number(seed: int) -> int:
    """Return the seed as a Python integer."""
    whole = isinstance(seed, Integral) and not isinstance(seed, bool)
    if not whole or not 0 <= seed < 2**40:
        raise ValueError(f"seed: expected an integer from 0 to 2^40, received {seed!r}.")
    return int(seed)


def learning_rate(lr: float | None, optimizer: str) -> float:
    """Return the base learning rate, by default that of the kind of optimizer."""
    if lr is None:
        return LEARNING_RATES[optimizer_family(optimizer)]
    return checks.positive_number("lr", lr)


def momentum_of(momentum: float | None, optimizer: str) -> float | None:
    """Return the momentum of SGD, 0.9 by default; None for other optimizers.

    Raises:
        ValueError: If the momentum is not in [0, 1), or the optimizer is not SGD.
    """
    if optimizer.lower() != "sgd":
        if momentum is not None:
            raise ValueError(
                f"momentum: expected only with optimizer='sgd', received {momentum!r} with "
                f"{optimizer!r}, which has its own defaults. Omit momentum."
            )
        return None
    return 0.9 if momentum is None else _number("momentum", momentum, below=1.0)


def weight_decay_of(weight_decay: float) -> float:
    """Return the weight decay as a Python number of at least 0."""
    return _number("weight_decay", weight_decay)


def _number(name: str, value: object, below: float = math.inf) -> float:
    limit = "" if below == math.inf else f" and below {below:g}"
    expected = f"{name}: expected a number of at least 0{limit}, received {value!r}."
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(expected)
    if not 0 <= float(value) < below:
        raise ValueError(expected)
    return float(value)


def draws_per_step(
    model: nn.Module, samples: int, draws: Draws | None, objective: Objective | None
) -> Draws | None:
    """Return the number of draws per step, or None for the default of several.

    Whether the default applies is decided with the first batch; see `coupling`.

    Raises:
        TypeError: If the objective is not an `Objective`.
        ValueError: If the arguments are inconsistent, or a count is not a positive integer.
    """
    if objective is not None and not isinstance(objective, Objective):
        raise TypeError(
            "objective: expected tacit.ExpectedLoss(), tacit.ELBO(prior) or tacit.GVI(prior, "
            f"strength), received {objective!r}."
        )
    samples = checks.positive_integer("samples", samples)
    given = 1 if draws is None else number_of_draws("draws", draws)
    if samples > 1 and given != 1:
        check_exclusive("samples", draws=draws)
    if not isinstance(model, Variational):
        if samples > 1 or given != 1 or objective is not None:
            raise ValueError("samples, draws and objective are for variational models.")
        return 1
    if draws is not None or samples > 1:
        return given
    if model.draws != 1:
        return model.draws
    return None if batch_first(model.module) and not has_batch_norm(model.module) else 1


def check_batch_norm(model: nn.Module, data: Batches) -> None:
    """Raise ValueError if the last batch has a single example, which batch norm can't normalise."""
    single = data.loader is None and data.size % data.batch_size == 1 and data.size > 1
    if single and data.parts == 1 and model.training and has_batch_norm(model):
        raise ValueError(
            f"batch_size: the last of the batches of {data.batch_size} would have one of the "
            f"{data.size} examples, which batch norm can't normalise; choose another size."
        )


def check_resumable(data: Batches, checkpoint: str | Path | None) -> None:
    """Raise an error for a DataLoader whose random state can't be saved in a checkpoint."""
    loader = data.loader
    if checkpoint is not None and loader is not None and loader.persistent_workers:
        raise ValueError(
            "train: the workers of a DataLoader with persistent_workers=True keep random states "
            "that a checkpoint can't save; use persistent_workers=False to be able to resume."
        )


def adopt(model: nn.Module, likelihood: Likelihood) -> Likelihood:
    """Return the likelihood, and attach it to a variational model without one."""
    if isinstance(model, Variational):
        if model.likelihood is None:
            model.likelihood = likelihood
        elif model.likelihood is not likelihood:
            raise ValueError("likelihood: the model already has one; omit the argument.")
    return likelihood


def reset_calibration(likelihood: Likelihood) -> None:
    """Remove an earlier calibration, which training invalidates."""
    likelihood.set_recalibration(None)
    if isinstance(likelihood, DiscreteLikelihood):
        likelihood.set_temperature(1.0)
    elif isinstance(likelihood, HeteroscedasticLikelihood):
        likelihood.reset()


def add_likelihood(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    likelihood: Likelihood,
    lr: float,
    processes: int,
) -> None:
    """Add learnable parameters of a likelihood that is not part of the model to the optimizer."""
    own = {id(parameter) for parameter in model.parameters()}
    learned = [p for p in likelihood.parameters() if p.requires_grad and id(p) not in own]
    if learned and processes > 1:
        raise ValueError("likelihood: its parameters can't be learned with several processes.")
    if learned:
        # AdamW would decay them by default.
        group = {"params": learned, "lr": lr, "weight_decay": 0.0, "name": "likelihood x1"}
        optimizer.add_param_group(group)


def schedule_factor(schedule: Schedule) -> Callable[[float], float]:
    """Return the function from training progress, 0 to 1, to a factor of the learning rate."""
    if schedule is None:
        return lambda progress: 1.0
    if schedule == "cosine":
        return lambda progress: 0.5 * (1 + math.cos(math.pi * progress))
    if not callable(schedule):
        raise ValueError(f"schedule: expected 'cosine' or a function, received {schedule!r}.")
    function = schedule

    def factor(progress: float) -> float:
        value: Any = function(progress)
        if isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) == 1:
            value = value.item()
        return _number(f"schedule({progress:.4g})", value)

    return factor
