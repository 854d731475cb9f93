"""The training loop: on Lightning Fabric, so on any device and on several of them."""

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
    check_choices,
    check_exact,
    draws_in_a_step,
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
    """The loss was not finite. The model is back where the epoch with the smallest loss began."""


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
    """Train a model on the expected loss, and return what happened.

    Started again with the same arguments and the same `checkpoint` folder, a run that was stopped
    or killed goes on where it was, with the same bits as if nothing had happened. Ctrl-C and
    SIGTERM end the program after the step, or some steps later when `tacit.SGD` next takes new
    directions, and the checkpoint is written.

    Args:
        model: A variational model, or a plain network with `likelihood`.
        train: A pair of inputs and targets in tensors or arrays, `tacit.data.Images`, a Dataset,
            or a DataLoader. Inputs of several tensors are a dict, given to the network as
            keywords, or a tuple. Batches of a Dataset or DataLoader may also be dicts with the
            targets under "labels". How `Images` are normalised is noted in `model.preprocessing`.
        validation: The same; evaluated after each epoch.
        epochs: Number of passes over the data.
        lr: Learning rate, before the factors of the parametrization.
        optimizer: Its name: "sgd", "adam", "adamw" and others.
        momentum: Of SGD.
        weight_decay: Of the means.
        batch_size: Examples in a step, over all processes together; a DataLoader has its own.
        samples: Functions drawn in a step, each for the whole batch.
        draws: Draws of the weights in a step, each for a part of the batch: less noise, in one
            pass, for a network that treats examples by themselves and has the batch first. If left
            out, as many as `variational` was given, or 8; but 1 with `samples`, or with batch norm,
            which would see the parts one by one.
        objective: `tacit.ExpectedLoss()` if left out; or `tacit.ELBO`, `tacit.GVI`.
        likelihood: The model's own if left out; a model without one has it from then on.
        parametrization: Learning rates of a plain network; a variational model has its own.
        schedule: How the learning rate changes: "cosine" to 0, or a function from the part of
            training done (0 to 1) to a factor.
        precision: Fabric's: "32-true", "bf16-mixed", "64-true" and others.
        accelerator: Fabric's: "auto", "cpu", "cuda" and others.
        devices: Number of devices, or "auto". Under torchrun its processes are used.
        strategy: Fabric's: "auto", "ddp" and others.
        early_stopping: Stop after this many epochs without a better validation NLL, and go back to
            the best.
        seed: Of data order and draws. Torch's generator is left as it was; those of NumPy and
            Python, which datasets may draw from, are seeded.
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
    check_choices(early_stopping, validation, resume, seed, optimizer)
    found = likelihood_of(model, likelihood)
    draws = draws_in_a_step(model, samples, draws, objective)
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
        check_exact(data, checkpoint)
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
    _warn_if_lost(run.history)
    if run.history.stopped == "interrupted":
        kept = f"; start again to go on from {checkpoint}" if checkpoint else ""
        stop.go(f"training was stopped after step {run.step} of {run.total_steps}{kept}")
    return run.history


def _epoch(
    run: Run,
    loss_of: Callable[[Batch], Tensor],
    factor: Callable[[float], float],
    stop: Callable[[], bool],
    show: Callable[[float], None],
) -> dict[str, float] | None:
    """Train for the rest of an epoch; return its numbers, or None if asked to stop within it."""
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


def _warn_if_lost(history: History) -> None:
    """Warn when training has left what it had found, without ever being infinite."""
    losses = history["loss"] if history.epochs else [0.0]
    best = min(losses)
    if losses[-1] > max(best + 1, losses[0]):
        epoch = losses.index(best) + 1
        warnings.warn(
            f"fit: the loss ended at {losses[-1]:.3g}, after {best:.3g} in epoch {epoch}. Try a "
            "smaller learning rate, or more draws; early_stopping goes back to the best epoch.",
            stacklevel=3,
        )


def _diverged(run: Run, what: str, lr: float) -> None:
    run.back_to_good()
    numbers = isinstance(run.likelihood, Gaussian | HeteroscedasticGaussian)
    raise TrainingDivergedError(
        f"{what}. Try a smaller learning rate than {lr:g}, or more draws"
        + (", and targets of a size of about 1" if numbers else "")
        + ". The model is as it was at the beginning of the epoch with the smallest loss"
        + (" (untrained)." if not run.history.epochs else ".")
    )


@contextmanager
def _drawing(model: nn.Module, draws: int) -> Iterator[None]:
    """Let the model make this many draws, as if it had been given to `variational`."""
    if not isinstance(model, Variational):
        yield
        return
    before, model.draws = model.draws, draws
    try:
        yield
    finally:
        model.draws = before
        model.defer_to(None)  # what trains it next need not be tacit.SGD


def _loss(run: Run, objective: Objective, size: int) -> Callable[[Batch], Tensor]:
    """Return the function from a batch to what is minimised."""
    raw, many = run.raw, run.settings.samples > 1
    keywords = {"samples": run.settings.samples} if many else {}

    def loss(batch: Batch) -> Tensor:
        outputs = tensor_of(batch.call(run.model, run.like, **keywords))
        value = run.likelihood.loss(outputs, batch.targets.to(run.device), samples=many)
        return objective(value, raw, data_size=size) if isinstance(raw, Variational) else value

    return loss
