"""The training loop, on Lightning Fabric: for one or several devices of any kind."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.calling import Variational
from tacit.data.batches import Batch, Batches
from tacit.data.images import Images
from tacit.inference.functions import likelihood_of, tensor_of
from tacit.likelihood import Gaussian, HeteroscedasticGaussian, Likelihood
from tacit.scaling.parametrization import Parametrization
from tacit.training.arguments import (
    Schedule,
    add_likelihood,
    adopt,
    check_arguments,
    check_resumable,
    draws_per_step,
    make_fabric,
    schedule_factor,
)
from tacit.training.history import History
from tacit.training.objective import ExpectedLoss, Objective
from tacit.training.optim.by_name import make_optimizer
from tacit.training.progress import announce_resume, show_progress
from tacit.training.run import EVALUATION_BATCH, Run, Settings
from tacit.training.signals import stop_requests

Callback: TypeAlias = Callable[[dict[str, float], nn.Module], bool | None]


class TrainingDivergedError(RuntimeError):
    """The loss is not finite; the model is reset to the start of the epoch with the lowest loss."""


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
    draws: int | None = None,
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
    """Train a model on the expected loss, and return the history.

    Called again with the same arguments and `checkpoint` folder, a run that was stopped or killed
    resumes from the newest checkpoint, and gives the same bits as an uninterrupted run. Ctrl-C and
    SIGTERM write a checkpoint and end the program after the current step, or some steps later when
    `tacit.SGD` next draws new noise directions.

    Args:
        model: A variational model, or a plain network with `likelihood`.
        train: A pair of inputs and targets in tensors or arrays, `tacit.data.Images`, a Dataset,
            or a DataLoader. Inputs of several tensors are a dict, passed to the network as
            keyword arguments, or a tuple. Batches of a Dataset or DataLoader may also be dicts with
            the targets under "labels". The normalisation of `Images` is recorded in
            `model.preprocessing`.
        validation: Validation data in the same formats, evaluated after each epoch.
        epochs: Number of passes over the data.
        lr: Base learning rate, before the parametrization's scaling.
        optimizer: Name of the optimizer: "sgd", "adam", "adamw" and others.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of the means.
        batch_size: Examples per step, in all processes together; ignored for a DataLoader.
        samples: Number of functions drawn per step, each applied to the whole batch.
        draws: Number of draws of the weights per step, each for a part of the batch: less noise in
            a single pass, for networks that treat examples independently and have the batch as
            their first dimension. The default is that of `variational`, or 8; but 1 with `samples`,
            or with batch norm, which would normalise each part separately.
        objective: `tacit.ExpectedLoss()` by default, or `tacit.ELBO`, `tacit.GVI`.
        likelihood: Defaults to the model's own; it is attached to a variational model without one.
        parametrization: Parametrization of a plain network; a variational model has its own.
        schedule: Learning rate schedule: "cosine" decays to 0; a function maps training progress,
            0 to 1, to a factor.
        precision: Fabric's precision: "32-true", "bf16-mixed", "64-true" and others.
        accelerator: Fabric's accelerator: "auto", "cpu", "cuda" and others.
        devices: Number of devices, or "auto". Under torchrun, its processes are used.
        strategy: Fabric's strategy: "auto", "ddp" and others.
        early_stopping: Stop after this many epochs without a better validation NLL, and restore
            the best model.
        seed: Seed of data order and draws. The state of torch's global generator is preserved;
            those of NumPy and Python, which datasets may use, are seeded.
        checkpoint: Folder for checkpoints, one per epoch; the newest two are kept.
        resume: "auto" resumes from the newest checkpoint if there is one, "never" starts afresh.
        progress: Whether to show progress; nothing is shown if the output is not a terminal.
        callbacks: Functions called after each epoch with its row of the history and the model; if
            one returns True, training stops.

    Raises:
        TrainingDivergedError: If the loss is not finite.
        ValueError: If the checkpoint belongs to another run, or no checkpoint is readable.

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
    check_arguments(early_stopping, validation, resume, seed, optimizer)
    found = likelihood_of(model, likelihood)
    draws = draws_per_step(model, samples, draws, objective)
    settings = Settings(
        epochs=checks.positive_integer("epochs", epochs),
        lr=checks.positive_number("lr", lr),
        optimizer=optimizer,
        momentum=momentum,
        weight_decay=weight_decay,
        batch_size=checks.positive_integer("batch_size", batch_size),
        samples=samples,
        draws=draws,
        precision=precision,
        seed=seed,
        schedule=schedule if isinstance(schedule, str) else "own" if schedule else "constant",
        objective=(objective or ExpectedLoss()).fingerprint(),
        early_stopping=early_stopping,
    )
    factor = schedule_factor(schedule)
    likelihood = adopt(model, found)
    if isinstance(model, Variational) and isinstance(train, Images):
        model.preprocessing = train.preprocessing
    with torch.random.fork_rng():
        fabric = make_fabric(accelerator, devices, strategy, precision)
        rank, parts = fabric.global_rank, fabric.world_size
        data = Batches("train", train, batch_size, shuffle=True, rank=rank, parts=parts)
        held_out = (
            None
            if validation is None
            else Batches("validation", validation, max(batch_size, EVALUATION_BATCH))
        )
        check_resumable(data, checkpoint)
        extra = {"momentum": momentum} if optimizer.lower() == "sgd" else {}
        stepper = make_optimizer(
            model, lr, optimizer,
            parametrization=parametrization, weight_decay=weight_decay, **extra,
        )  # fmt: skip
        add_likelihood(stepper, model, likelihood, lr, parts)
        run = Run(fabric, model, stepper, likelihood, settings, data, checkpoint)
        shows = progress and fabric.is_global_zero
        if resume == "auto" and run.restore() and shows and not run.finished:
            announce_resume(run)
        loss_of = _loss(run, objective or ExpectedLoss(), data.size)
        bar = show_progress(run) if shows else nullcontext(lambda loss: None)
        with stop_requests() as stop, bar as show, _drawing(model, settings.draws):
            while not run.finished:
                row = _epoch(run, loss_of, factor, stop, show)
                if row is not None:
                    if held_out is not None:
                        row.update(run.evaluate(held_out))
                    run.end_epoch(row)
                    if run.any_process(any([bool(c(row, model)) for c in callbacks])):  # noqa: C419
                        run.history.stopped = "callback"
                if row is None or (not run.finished and run.any_process(stop())):
                    run.history.stopped = "interrupted"
                run.save()
        run.use_best()
    _warn_if_worse(run.history)
    if run.history.stopped == "interrupted":
        hint = f"; run again to resume from {checkpoint}" if checkpoint else ""
        stop.exit(f"training stopped after step {run.step} of {run.total_steps}{hint}")
    return run.history


def _epoch(
    run: Run,
    loss_of: Callable[[Batch], Tensor],
    factor: Callable[[float], float],
    stop: Callable[[], bool],
    show: Callable[[float], None],
) -> dict[str, float] | None:
    """Train for the rest of an epoch; return its row of the history, or None if stopped within."""
    start = time.perf_counter()
    run.begin_epoch()
    lr = run.set_learning_rate(factor)
    for batch in run.batches():
        lr = run.set_learning_rate(factor)
        loss = loss_of(batch)
        value = loss.item()
        if run.any_process(not math.isfinite(value)):
            _diverged(run, f"The loss is {value} in epoch {run.epoch + 1}, step {run.step}", lr)
        run.optimizer.zero_grad()
        run.fabric.backward(loss * batch.weight)
        run.optimizer.step()
        run.end_step(value)
        show(value)
        if run.done < len(run.data) and run.any_process(stop()) and not run.within_block:
            return None
    if not run.finite:
        _diverged(run, f"A parameter is not finite after epoch {run.epoch + 1}", lr)
    return {
        "epoch": run.epoch + 1,
        "loss": run.mean_loss,
        "lr": lr,
        "seconds": time.perf_counter() - start,
    }


def _warn_if_worse(history: History) -> None:
    """Warn if the loss ended well above its minimum, although it was always finite."""
    losses = history["loss"] if history.epochs else [0.0]
    best = min(losses)
    if losses[-1] > max(best + 1, losses[0]):
        epoch = losses.index(best) + 1
        warnings.warn(
            f"fit: the loss ended at {losses[-1]:.3g}, after {best:.3g} in epoch {epoch}. Try a "
            "smaller learning rate, or more draws; early_stopping restores the best epoch.",
            stacklevel=3,
        )


def _diverged(run: Run, what: str, lr: float) -> None:
    run.restore_good()
    regression = isinstance(run.likelihood, Gaussian | HeteroscedasticGaussian)
    raise TrainingDivergedError(
        f"{what}. Try a smaller learning rate than {lr:g}, or more draws"
        + (", and targets standardised to unit variance" if regression else "")
        + ". The model is reset to the start of the epoch with the smallest loss"
        + (" (untrained)." if not run.history.epochs else ".")
    )


@contextmanager
def _drawing(model: nn.Module, draws: int) -> Iterator[None]:
    """Set the model's number of draws for the duration of training; then end deferred updates."""
    if not isinstance(model, Variational):
        yield
        return
    before, model.draws = model.draws, draws
    try:
        yield
    finally:
        model.draws = before
        model.defer_to(None)  # another optimizer may train it next


def _loss(run: Run, objective: Objective, size: int) -> Callable[[Batch], Tensor]:
    """Return the objective as a function of a batch."""
    raw, many = run.raw, run.settings.samples > 1
    keywords = {"samples": run.settings.samples} if many else {}

    def loss(batch: Batch) -> Tensor:
        outputs = tensor_of(batch.call(run.model, run.like, **keywords))
        value = run.likelihood.loss(outputs, batch.targets.to(run.device), samples=many)
        return objective(value, raw, data_size=size) if isinstance(raw, Variational) else value

    return loss
