"""The arguments of `fit`: validated, and converted for the training loop."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import nn

from tacit._support import checks
from tacit.calling import Variational
from tacit.calling.caller import has_batch_norm
from tacit.calling.draws import batch_first
from tacit.data.batches import Batches
from tacit.likelihood import DiscreteLikelihood, Likelihood
from tacit.training.objective import Objective

if TYPE_CHECKING:
    from lightning_fabric import Fabric

DRAWS = 8  # default draws per step, chosen by the comparison in benchmarks/choices.py

Schedule: TypeAlias = Literal["cosine"] | Callable[[float], float] | None


def check_arguments(
    early_stopping: int | None, validation: Any, resume: str, seed: int, optimizer: object
) -> None:
    """Raise an error for invalid or inconsistent arguments."""
    if early_stopping is not None:
        checks.positive_integer("early_stopping", early_stopping)
        if validation is None:
            raise ValueError("early_stopping needs validation data.")
    if not isinstance(optimizer, str):
        raise TypeError(
            f"optimizer: expected a name such as 'sgd' or 'adam', received {optimizer!r}."
        )
    if resume not in ("auto", "never"):
        raise ValueError(f"resume: expected 'auto' or 'never', received {resume!r}.")
    if not isinstance(seed, int) or not 0 <= seed < 2**40:
        raise ValueError(f"seed: expected an integer from 0 to 2^40, received {seed!r}.")


def draws_per_step(
    model: nn.Module, samples: int, draws: int | None, objective: Objective | None
) -> int:
    """Return the number of draws per step; the default depends on the model.

    Raises:
        TypeError: If the objective is not an `Objective`.
        ValueError: If the arguments are inconsistent, or a count is not a positive integer.
    """
    if objective is not None and not isinstance(objective, Objective):
        raise TypeError(
            "objective: expected tacit.ExpectedLoss(), tacit.ELBO(prior) or tacit.GVI(prior, "
            f"strength), received {objective!r}."
        )
    checks.positive_integer("samples", samples)
    given = 1 if draws is None else checks.positive_integer("draws", draws)
    if samples > 1 and given > 1:
        raise ValueError("samples and draws exclude each other: choose one.")
    if not isinstance(model, Variational):
        if samples > 1 or given > 1 or objective is not None:
            raise ValueError("samples, draws and objective are for variational models.")
        return 1
    if draws is not None or samples > 1:
        return given
    if model.draws > 1:
        return model.draws
    return DRAWS if batch_first(model.module) and not has_batch_norm(model.module) else 1


def check_resumable(data: Batches, checkpoint: str | Path | None) -> None:
    """Raise an error for a DataLoader whose random state can't be saved in a checkpoint."""
    loader = data.loader
    if checkpoint is not None and loader is not None and loader.persistent_workers:
        raise ValueError(
            "train: the workers of a DataLoader with persistent_workers=True keep random states "
            "that a checkpoint can't save; use persistent_workers=False to be able to resume."
        )


def adopt(model: nn.Module, likelihood: Likelihood) -> Likelihood:
    """Return the likelihood, and attach it to a variational model without one.

    Resets its temperature to 1.
    """
    if isinstance(model, Variational):
        if model.likelihood is None:
            model.likelihood = likelihood
        elif model.likelihood is not likelihood:
            raise ValueError("likelihood: the model already has one; omit the argument.")
    if isinstance(likelihood, DiscreteLikelihood):
        likelihood.set_temperature(1.0)  # training invalidates an earlier calibration
    return likelihood


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
        optimizer.add_param_group({"params": learned, "lr": lr, "name": "likelihood x1"})


def schedule_factor(schedule: Schedule) -> Callable[[float], float]:
    """Return the function from training progress, 0 to 1, to a factor of the learning rate."""
    if schedule is None:
        return lambda progress: 1.0
    if schedule == "cosine":
        return lambda progress: 0.5 * (1 + math.cos(math.pi * progress))
    if not callable(schedule):
        raise ValueError(f"schedule: expected 'cosine' or a function, received {schedule!r}.")
    return schedule


def make_fabric(accelerator: str, devices: int | str, strategy: str, precision: str) -> Fabric:
    """Return Fabric, launched if there are several processes."""
    from lightning_fabric import Fabric  # its import takes longer than all of tacit's

    nodes = 1
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started the processes
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
        strategy = "ddp" if strategy == "auto" else strategy
    settings: dict[str, Any] = {"accelerator": accelerator, "devices": devices}
    fabric = Fabric(**settings, num_nodes=nodes, strategy=strategy, precision=precision)  # type: ignore[arg-type]
    if fabric.world_size > 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        fabric.launch()
    return fabric
