"""The training loop, on Lightning Fabric: for one or several devices of any kind."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.calling import Variational
from tacit.calling.arguments import Draws
from tacit.data.batches import Batch, Batches
from tacit.data.images import Images
from tacit.inference.functions import likelihood_of, tensor_of
from tacit.inference.scores import targets_of
from tacit.likelihood import Likelihood
from tacit.scaling.parametrization import Parametrization
from tacit.training.arguments import (
    DRAWS,
    Schedule,
    add_likelihood,
    adopt,
    check_arguments,
    check_batch_norm,
    check_model,
    check_resumable,
    draws_per_step,
    learning_rate,
    momentum_of,
    reset_calibration,
    schedule_factor,
    seed_number,
    weight_decay_of,
)
from tacit.training.checkpoints import locked
from tacit.training.divergence import diverged, warn_if_worse
from tacit.training.fingerprint import fingerprint
from tacit.training.held_out import (
    EVALUATION_BATCH,
    check_validation,
    evaluate_run,
    fit_scale,
)
from tacit.training.history import History, plain_row
from tacit.training.identity import (
    describe_likelihood,
    describe_model,
    describe_training_data,
    schedule_values,
)
from tacit.training.objective import ExpectedLoss, Objective
from tacit.training.optim.by_name import make_optimizer
from tacit.training.processes import make_fabric
from tacit.training.progress import announce_resume, show_progress
from tacit.training.run import Run, Settings
from tacit.training.signals import Stop, stop_requests
from tacit.training.units import set_units

# Without a number of epochs: least steps of an epoch, and bounds of the run, the larger one counts.
EPOCH_STEPS, MOST_EPOCHS, MOST_STEPS = 50, 20, 20_000

Callback: TypeAlias = Callable[[dict[str, float], nn.Module], bool | None]


def fit(
    model: nn.Module,
    train: Any,
    validation: Any = None,
    *,
    epochs: int | None = None,
    lr: float | None = None,
    optimizer: str = "sgd",
    momentum: float | None = None,
    weight_decay: float = 0.0,
    batch_size: int = 128,
    samples: int = 1,
    draws: Draws | None = None,
    factor_speed: float | None = None,
    objective: Objective | None = None,
    likelihood: Likelihood | None = None,
    parametrization: Parametrization | None = None,
    schedule: Schedule = None,
    average: float = 0.0,
    standardise: bool | None = None,
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
    resumes from the newest checkpoint and ends bit for bit like an uninterrupted run. Ctrl-C and
    SIGTERM write a checkpoint and end the program after the current step, or some steps later when
    `tacit.SGD` next draws new noise directions.

    Args:
        model: A variational model, or a plain network with `likelihood`.
        train: A pair of inputs and targets in tensors or arrays, `tacit.data.Images`, a Dataset,
            or a DataLoader. Inputs of several tensors are a dict, passed to the network as
            keyword arguments, or a tuple. Batches of a Dataset or DataLoader may also be dicts with
            the targets under "labels". `Images` are augmented if they have an augmentation;
            their normalisation is recorded in `model.preprocessing`.
        validation: Validation data in the same formats, evaluated after each epoch.
        epochs: Number of passes over the data. By default validation data decide: training stops
            when their NLL has hardly improved for as long as it took to get there, and the best
            average of the last tenth of the steps is kept. An epoch then has at least 50 steps,
            several passes over few data; with a DataLoader it is one pass.
        lr: Base learning rate, before the parametrization's scaling; 0.03 by default, 0.002 for
            optimizers like Adam.
        optimizer: Name of the optimizer: "sgd", "adam", "adamw" and others.
        momentum: Momentum of SGD, 0.9 by default; an error for other optimizers, which have
            defaults of their own.
        weight_decay: Weight decay of the means.
        batch_size: Examples per step, in all processes together; ignored for a DataLoader.
        samples: Number of functions drawn per step, each applied to the whole batch.
        draws: Number of draws of the weights per step, each for a part of the batch: less noise in
            a single pass, for networks that treat examples independently and have the batch as
            their first dimension. "each" for one draw per example; see `Variational.forward`. The
            default is that of the model, "each" for `tacit.variational(net)`. If that is 1, it is
            8; but 1 with `samples`, or with batch norm, which would normalise each part
            separately. The default of 8 is tested on the first batch: if a part of it alone gives
            other outputs, a warning says so, and 1 is used.
        factor_speed: How fast the prior is forgotten; see `Variational.param_groups`.
        objective: `tacit.ExpectedLoss()` by default, or `tacit.ELBO`, `tacit.GVI`.
        likelihood: Defaults to the model's own; it is attached to a variational model without one.
        parametrization: Parametrization of a plain network; a variational model has its own.
        schedule: Learning rate schedule: "cosine" decays to 0; a function maps training progress,
            0 to 1, to a factor. With `checkpoint` it is also called before training, to recognise
            the same run.
        average: Fraction of training, at its end, over which the parameters are averaged; 0 for no
            average. With deferred updates only the iterates at which these are settled count, at
            least one per epoch. Validation scores are those of the average from then on. Batch norm
            statistics are recomputed for it at the end; until then scores use those of training.
        standardise: Whether inputs of a table, a single tensor (B, D) of real numbers, and real
            targets are standardised within the model: by default if the targets are real, but not
            the inputs of a model with adapters. Calls of the model then take, and predictions have,
            the units of the data. A plain network can't standardise its inputs; put
            `tacit.models.Standardise` in front.
        precision: Fabric's precision: "32-true", "bf16-mixed", "64-true" and others.
        accelerator: Fabric's accelerator: "auto", "cpu", "cuda" and others.
        devices: Number of devices, or "auto". Under torchrun, or SLURM's srun with several tasks,
            their processes are used.
        strategy: Fabric's strategy: "auto", "ddp" and others.
        early_stopping: Stop after this many epochs without a better validation NLL, and restore
            the best model.
        seed: Seed of data order and draws. The state of torch's global generator is preserved;
            those of NumPy and Python, which datasets may use, are seeded.
        checkpoint: Folder for checkpoints, one per epoch; the newest two are kept. A folder is for
            one run: it is locked while the run lasts, and a run resumes only if everything that
            affects its result is the same: arguments, network, likelihood and data, of which some
            examples are compared. More epochs extend a run without a schedule.
        resume: "auto" resumes from the newest checkpoint if there is one, "never" starts afresh.
        progress: Whether to show progress; nothing is shown if the output is not a terminal.
        callbacks: Functions called after each epoch with its row of the history and the model; if
            one returns True, training stops. With `average`, the model still has the parameters of
            the last step, not those that the row scores.

    Raises:
        TrainingDivergedError: If the loss is not finite.
        ValueError: If the checkpoint belongs to another run, or no checkpoint is readable.
        RuntimeError: If another run is using the checkpoint folder.

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
    check_arguments(
        epochs,
        schedule,
        average,
        validation,
        early_stopping,
        resume,
        optimizer,
        parametrization,
        checkpoint,
        callbacks,
    )
    check_model(model, parametrization)
    found = likelihood_of(model, likelihood)
    settings = Settings(
        epochs=1 if epochs is None else checks.positive_integer("epochs", epochs),
        lr=learning_rate(lr, optimizer),
        optimizer=optimizer.lower(),
        momentum=momentum_of(momentum, optimizer),
        weight_decay=weight_decay_of(weight_decay),
        batch_size=checks.positive_integer("batch_size", batch_size),
        draws=draws_per_step(model, samples, draws, objective),
        factor_speed=None
        if factor_speed is None
        else checks.nonnegative_number("factor_speed", factor_speed),
        samples=checks.positive_integer("samples", samples),
        average=checks.probability("average", average),
        precision=precision,
        seed=seed_number(seed),
        schedule=schedule if isinstance(schedule, str) else "own" if schedule else "constant",
        objective=(objective or ExpectedLoss()).fingerprint(),
        early_stopping=None
        if early_stopping is None
        else checks.positive_integer("early_stopping", early_stopping),
        standardise=standardise,
        automatic=epochs is None,
    )
    factor = schedule_factor(schedule)
    with torch.random.fork_rng():
        fabric = make_fabric(accelerator, devices, strategy, precision)
        rank, parts = fabric.global_rank, fabric.world_size
        size = settings.batch_size
        data = Batches("train", train, size, shuffle=True, rank=rank, parts=parts)
        if settings.automatic:
            settings = _bounded(settings, data)
        held_out = (
            None
            if validation is None
            else Batches("validation", validation, max(size, EVALUATION_BATCH))
        )
        check_resumable(data, checkpoint)
        check_batch_norm(model, data)
        likelihood = adopt(model, found)
        whole = Batches("train", train, max(size, EVALUATION_BATCH), shuffle=True)
        set_units(model, likelihood, whole, standardise)
        if isinstance(model, Variational) and isinstance(train, Images):
            model.preprocessing = train.preprocessing
        extra = {} if settings.momentum is None else {"momentum": settings.momentum}
        stepper = make_optimizer(
            model, settings.lr, settings.optimizer,
            parametrization=parametrization, weight_decay=settings.weight_decay,
            factor_speed=settings.factor_speed, deferred_draws=_deferred_draws(settings), **extra,
        )  # fmt: skip
        add_likelihood(stepper, model, likelihood, settings.lr, parts)
        with locked(fabric, checkpoint):
            run = Run(fabric, model, stepper, likelihood, settings, data, checkpoint)
            if checkpoint is not None and fabric.is_global_zero:
                run.identity = _identity(run, parametrization, factor, held_out)
            shows = progress and fabric.is_global_zero
            if resume == "auto" and run.restore() and shows and not run.finished:
                announce_resume(run)
            reset_calibration(likelihood)
            if held_out is not None and not run.finished:
                check_validation(model, likelihood, held_out, run.device)
            stop = _train(run, objective, factor, held_out, callbacks, shows)
            if run.history.stopped != "interrupted":
                run.use_result(partial(_calls, run))
                fit_scale(run, held_out or whole)
    warn_if_worse(run.history)
    if run.history.stopped == "interrupted":
        hint = f"; run again to resume from {checkpoint}" if checkpoint else ""
        stop.exit(f"training stopped after step {run.step} of {run.total_steps}{hint}")
    return run.history


def _bounded(settings: Settings, data: Batches) -> Settings:
    """Return settings with a bound on the epochs, and make these epochs long enough."""
    if data.loader is None:
        data.passes = -(-EPOCH_STEPS // len(data))
    return replace(settings, epochs=max(MOST_EPOCHS, -(-MOST_STEPS // len(data))))


def _train(
    run: Run,
    objective: Objective | None,
    factor: Callable[[float], float],
    held_out: Batches | None,
    callbacks: Sequence[Callback],
    shows: bool,
) -> Stop:
    """Train until the run is finished or a signal requests a stop."""
    loss_of = _loss(run, objective or ExpectedLoss(), run.data.size)
    bar = show_progress(run) if shows else nullcontext(lambda loss: None)
    with stop_requests() as stop, bar as show, _drawing(run.raw, run.draws or DRAWS):
        while not run.finished:
            row = _epoch(run, loss_of, factor, stop, show)
            if row is not None:
                try:
                    with run.averaged():
                        if held_out is not None:
                            row.update(evaluate_run(run, held_out))
                        run.end_epoch(row)
                except FloatingPointError:
                    what = f"Predictions of validation data are NaN after epoch {run.epoch + 1}"
                    diverged(run, what, row["lr"])
                if run.any_process(any([bool(c(row, run.raw)) for c in callbacks])):  # noqa: C419
                    run.history.stopped = "callback"
                run.history.epochs[-1] = plain_row(row)
            if row is None or (not run.finished and run.any_process(stop())):
                run.history.stopped = "interrupted"
            run.save()
    return stop


def _identity(
    run: Run,
    parametrization: Parametrization | None,
    factor: Callable[[float], float],
    held_out: Batches | None,
) -> dict[str, Any]:
    """Return everything that affects the result of a run, as JSON data."""
    stopping = run.stops_early
    found = {
        **asdict(run.settings),
        "schedule values": schedule_values(factor) if run.settings.schedule == "own" else None,
        "batches": len(run.data),
        "processes": run.fabric.world_size,
        "likelihood": describe_likelihood(run.likelihood, averaging=stopping),
        **describe_model(run.raw, parametrization),
        "data": describe_training_data(run.data),
        "validation": fingerprint(held_out) if stopping and held_out is not None else None,
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))  # as read from a checkpoint
    return plain


def _epoch(
    run: Run,
    loss_of: Callable[[Batch], Tensor],
    factor: Callable[[float], float],
    stop: Callable[[], bool],
    show: Callable[[float], None],
) -> dict[str, float] | None:
    """Train for the rest of an epoch; return its row of the history, or None if stopped early."""
    start = time.perf_counter()
    run.begin_epoch()
    lr = run.set_learning_rate(factor)
    for batch in run.batches():
        lr = run.set_learning_rate(factor)
        run.choose_draws(batch, DRAWS)
        loss = loss_of(batch)
        value = loss.item()
        if run.any_process(not math.isfinite(value)):
            diverged(run, f"The loss is {value} in epoch {run.epoch + 1}, step {run.step}", lr)
        run.optimizer.zero_grad()
        run.fabric.backward(loss * batch.weight)
        run.optimizer.step()
        run.end_step(value)
        show(value)
        if run.done < len(run.data) and run.any_process(stop()) and not run.within_block:
            return None
    if not run.finite:
        diverged(run, f"A parameter is not finite after epoch {run.epoch + 1}", lr)
    return {
        "epoch": run.epoch + 1,
        "loss": run.mean_loss,
        "lr": lr,
        "seconds": time.perf_counter() - start,
    }


def _deferred_draws(settings: Settings) -> int | None:
    """Return the draws per step of the layers whose updates may be deferred, None for none."""
    if settings.samples > 1:
        return None
    return 1 if settings.draws == "each" else settings.draws or DRAWS


@contextmanager
def _drawing(model: nn.Module, draws: Draws) -> Iterator[None]:
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


def _calls(run: Run) -> Iterator[Callable[[], Any]]:
    """Return functions that call the model on the batches of an epoch, in train mode."""
    run.begin_epoch()
    torch.manual_seed(run.settings.seed)  # also for a run that is resumed after its end
    batches = run.data.epoch(run.settings.seed, run.epoch)
    return (partial(batch.call, run.model, run.like) for batch in batches)


def _loss(run: Run, objective: Objective, size: int) -> Callable[[Batch], Tensor]:
    """Return the objective as a function of a batch."""
    raw, many = run.raw, run.settings.samples > 1
    keywords = {"samples": run.settings.samples} if many else {}
    # An explicit regularizer is weighed against the likelihood itself.
    criterion = run.likelihood.training_loss if run.fits_scale else run.likelihood.loss

    def loss(batch: Batch) -> Tensor:
        outputs = tensor_of(batch.call(run.model, run.like, **keywords))
        targets = targets_of(batch, run.data.name).to(run.device)
        value = criterion(outputs, targets, samples=many)
        return objective(value, raw, data_size=size) if isinstance(raw, Variational) else value

    return loss
