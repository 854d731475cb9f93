"""The training loop: on Lightning Fabric, so on any device and on several of them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from lightning_fabric import Fabric
from torch import Tensor, nn

from tacit import _checks
from tacit.batches import Batches, to_device
from tacit.likelihood import Likelihood
from tacit.objective import ExpectedLoss, Objective
from tacit.optimizers import make_optimizer
from tacit.parametrization import Parametrization
from tacit.prediction import likelihood_of
from tacit.training.history import History
from tacit.training.run import Run, Settings
from tacit.training.shown import shown
from tacit.training.signals import stop_requests
from tacit.variational import Variational

Schedule: TypeAlias = Literal["cosine"] | Callable[[float], float] | None
Callback: TypeAlias = Callable[[dict[str, float], nn.Module], bool | None]


class TrainingDivergedError(RuntimeError):
    """The loss was not finite. The model is back at the beginning of the epoch."""


def fit(
    model: nn.Module,
    train: Any,
    validation: Any = None,
    *,
    epochs: int,
    lr: float,
    optimizer: str = "sgd",
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    batch_size: int = 128,
    samples: int = 1,
    draws: int = 1,
    objective: Objective | None = None,
    likelihood: Likelihood | None = None,
    parametrization: Parametrization | None = None,
    schedule: Schedule = None,
    precision: str = "32-true",
    accelerator: str = "auto",
    devices: int | str = 1,
    strategy: str = "auto",
    early_stopping: int | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    resume: Literal["auto", "never"] = "auto",
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> History:
    """Train a model on the expected loss, and return what happened.

    Started again with the same arguments and the same `checkpoint` folder, a run that was stopped
    or killed goes on where it was, with the same bits as if nothing had happened.

    Args:
        model: A variational model, or a plain network with `likelihood`.
        train: A pair of tensors or arrays, a Dataset, or a DataLoader, of inputs and targets.
        validation: The same; evaluated after each epoch.
        epochs: Number of passes over the data.
        lr: Learning rate, before the factors of the parametrization.
        optimizer: Its name: "sgd", "adam", "adamw" and others.
        momentum: Of SGD.
        weight_decay: Of the means.
        batch_size: Examples in a step, over all processes together; a DataLoader has its own.
        samples: Functions drawn in a step, each for the whole batch.
        draws: Draws of the weights in a step, each for a part of the batch: less noise at the cost
            of one. 1 leaves it to the model.
        objective: `tacit.ExpectedLoss()` if left out; or `tacit.ELBO`, `tacit.GVI`.
        likelihood: The model's own if left out.
        parametrization: Learning rates of a plain network; a variational model has its own.
        schedule: How the learning rate changes: "cosine" to 0, or a function from the part of
            training done (0 to 1) to a factor.
        precision: Fabric's: "32-true", "bf16-mixed", "64-true" and others.
        accelerator: Fabric's: "auto", "cpu", "cuda" and others.
        devices: Number of devices, or "auto". Under torchrun its processes are used.
        strategy: Fabric's: "auto", "ddp" and others.
        early_stopping: Stop after this many epochs without a better validation NLL, and go back to
            the best.
        seed: Of data order and draws.
        checkpoint: Folder for checkpoints, one per epoch, the newest two kept.
        resume: "auto" goes on from the newest checkpoint if there is one, "never" starts anew.
        progress: Whether to show progress; quiet where the output is not a terminal.
        callbacks: Called after each epoch with its numbers and the model; one that returns True
            stops training.

    Raises:
        TrainingDivergedError: If the loss is not finite.
        ValueError: If a checkpoint is of another run, or no checkpoint of several can be read.

    Examples:
        >>> import tacit, torch
        >>> x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        >>> model = tacit.variational(
        ...     torch.nn.Linear(4, 2), rank=2, likelihood=tacit.Categorical()
        ... )
        >>> labels = (x[:, 0] > 0).long()
        >>> history = tacit.fit(model, (x, labels), (x, labels), epochs=10, lr=0.02, batch_size=8)
        >>> len(history), history["accuracy"][-1] > 0.8
        (10, True)
    """
    if early_stopping is not None and validation is None:
        raise ValueError("early_stopping needs validation data.")
    if resume not in ("auto", "never"):
        raise ValueError(f"resume: expected auto or never, received {resume!r}.")
    settings = Settings(
        epochs=_checks.positive_integer("epochs", epochs),
        lr=_checks.positive_number("lr", lr),
        optimizer=optimizer,
        momentum=momentum,
        weight_decay=weight_decay,
        batch_size=_checks.positive_integer("batch_size", batch_size),
        samples=_checks.positive_integer("samples", samples),
        draws=_checks.positive_integer("draws", draws),
        precision=precision,
        seed=seed,
    )
    fabric = _fabric(accelerator, devices, strategy, precision)
    data = Batches(
        "train", train, batch_size, shuffle=True, rank=fabric.global_rank, parts=fabric.world_size
    )
    held_out = None if validation is None else Batches("validation", validation, 1024)
    extra = {"momentum": momentum} if optimizer.lower() == "sgd" else {}
    stepper = make_optimizer(
        model, lr, optimizer, parametrization=parametrization, weight_decay=weight_decay, **extra
    )
    run = Run(fabric, model, stepper, likelihood_of(model, likelihood), settings, data, checkpoint)
    if resume == "auto":
        run.restore()
    factor = _schedule(schedule)
    loss_of = _loss(run, objective or ExpectedLoss(), data.size)
    with stop_requests() as stop, shown(run, progress and fabric.is_global_zero) as show:
        while not run.finished:
            row = _epoch(run, loss_of, factor, stop, show)
            if row is None:
                run.history.stopped = "interrupted"
                run.save()
                break
            if held_out is not None:
                row.update(run.evaluate(held_out))
            run.end_epoch(row, early_stopping)
            for callback in callbacks:
                if callback(row, model):
                    run.history.stopped = "callback"
            run.save()
    run.use_best(early_stopping)
    return run.history


def _epoch(
    run: Run,
    loss_of: Callable[[Any, Tensor], Tensor],
    factor: Callable[[float], float],
    stop: Callable[[], bool],
    show: Callable[[float], None],
) -> dict[str, float] | None:
    """Train for the rest of an epoch; return its numbers, or None if asked to stop."""
    start = time.perf_counter()
    run.begin_epoch()
    for inputs, targets in run.batches():
        lr = run.set_learning_rate(factor)
        loss = loss_of(to_device(inputs, run.device), to_device(targets, run.device))
        value = loss.item()
        if not math.isfinite(value):
            run.back_to_epoch_start()
            raise TrainingDivergedError(
                f"The loss is {value} in epoch {run.epoch + 1}, step {run.step}. Try a smaller "
                f"learning rate than {lr:g}, or more draws. The model is as it was at the "
                "beginning of the epoch."
            )
        run.optimizer.zero_grad()
        run.fabric.backward(loss)
        run.optimizer.step()
        run.end_step(value)
        show(value)
        if run.any_process(stop()):
            return None
    return {
        "epoch": run.epoch + 1,
        "loss": run.mean_loss,
        "lr": lr,
        "seconds": time.perf_counter() - start,
    }


def _loss(run: Run, objective: Objective, size: int) -> Callable[[Any, Tensor], Tensor]:
    """Return the function from a batch to what is minimised."""
    settings, raw = run.settings, run.raw
    keywords: dict[str, int] = {}
    if isinstance(raw, Variational):
        if settings.samples > 1:
            keywords = {"samples": settings.samples}
        elif settings.draws > 1:
            keywords = {"draws": settings.draws}

    def loss(inputs: Any, targets: Tensor) -> Tensor:
        outputs = run.model(inputs, **_fitting(keywords, targets))
        value = run.likelihood.loss(getattr(outputs, "logits", outputs), targets)
        return objective(value, raw, data_size=size) if isinstance(raw, Variational) else value

    return loss


def _fitting(keywords: dict[str, int], targets: Tensor) -> dict[str, int]:
    """Return the keywords with at most one draw per example: a last batch may be short."""
    if "draws" not in keywords:
        return keywords
    return {"draws": min(keywords["draws"], len(targets))}


def _schedule(schedule: Schedule) -> Callable[[float], float]:
    if schedule is None:
        return lambda part: 1.0
    if schedule == "cosine":
        return lambda part: 0.5 * (1 + math.cos(math.pi * part))
    if not callable(schedule):
        raise ValueError(f"schedule: expected 'cosine' or a function, received {schedule!r}.")
    return schedule


def _fabric(accelerator: str, devices: int | str, strategy: str, precision: str) -> Fabric:
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
