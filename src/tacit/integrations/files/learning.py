"""From encoded examples to a trained model: the default, or a method of `tacit.methods`."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.calling import Variational, variational
from tacit.data.images import Images
from tacit.inference import Predictor, calibrate
from tacit.inference.held_out_scores import nonconformity
from tacit.integrations.files.model import QUANTILE, SAMPLES, FileModel, epistemic, functions_in
from tacit.integrations.files.training_table import Note
from tacit.likelihood import (
    Categorical,
    ContinuousLikelihood,
    Gaussian,
    HeteroscedasticStudentT,
    Likelihood,
)
from tacit.methods import SWAG, TemperatureScaling
from tacit.methods import Task as MethodTask
from tacit.methods.by_name import METHODS
from tacit.training import TrainingDivergedError, fit

DEFAULT = "implicit_bias_vi"
GAUSSIAN = ("laplace_grid", "laplace_marglik", "implicit_bias_vi_paper")  # regression methods
BATCH = 128
SWAG_STEPS, SWAG_EPOCHS = 2000, 20  # at least, since SWAG needs a number of epochs


@dataclass(frozen=True)
class Settings:
    """Settings of training.

    Attributes:
        epochs: Passes over the data; by default held-out examples end training.
        lr: Learning rate, by default that of `tacit.fit`.
        seed: Seed of splits, initial weights, training and predictions.
        checkpoint: Folder by which a killed run resumes.
        progress: Whether to show progress.
        folder: Folder of temporary files with the rows of a table; by default that of the system.
        method: Name of the method, a key of `tacit.methods.by_name.METHODS`.

    Examples:
        >>> settings = Settings(epochs=20, method="deep_ensemble", progress=False)
        >>> settings.lr, settings.seed  # the learning rate of `tacit.fit`
        (None, 0)
    """

    epochs: int | None = None
    lr: float | None = None
    seed: int = 0
    checkpoint: Path | None = None
    progress: bool = True
    folder: Path | None = None
    method: str = DEFAULT

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(
                f"method: expected one of {', '.join(METHODS)}; received {self.method!r}."
            )


def check_task(settings: Settings, classes: Sequence[str]) -> None:
    """Raise ValueError if the method is for another task."""
    if not classes and isinstance(METHODS[settings.method], TemperatureScaling):
        raise ValueError(
            f"--method {settings.method} is for classes, and the target has numbers; the noise "
            "scale of numbers is always set. Use --method standard."
        )


def likelihood_for(classes: Sequence[str], method: str) -> tuple[Likelihood, int]:
    """Return the likelihood of targets, and the number of outputs it takes.

    Args:
        classes: Names of the classes; none for regression.
        method: Name of the method. Laplace's needs outputs that are means alone; with the paper's,
            a predicted scale is so noisy that training diverges.
    """
    if classes:
        return Categorical(class_names=list(classes)), len(classes)
    if method in GAUSSIAN:
        return Gaussian(), 1
    return HeteroscedasticStudentT(), 2


def learned(
    make_net: Callable[[], nn.Module],
    likelihood: Likelihood,
    train: Any,
    validation: Any,
    settings: Settings,
    *,
    table: bool,
) -> Variational | Predictor:
    """Return a trained model, calibrated if its method is.

    Args:
        make_net: Makes the network.
        likelihood: Likelihood of the targets.
        train: Training data.
        validation: Data that end training, and set the temperature or noise scale.
        settings: Settings of training.
        table: Whether inputs are rows of a table, which the default model standardises itself.
    """
    with _seeded(settings.seed), _checkpoints(settings):
        if settings.method == DEFAULT:
            return _default(make_net(), likelihood, train, validation, settings, table)
        return _rival(make_net, likelihood, train, validation, settings)


def _default(
    net: nn.Module, likelihood: Likelihood, train: Any, validation: Any, settings: Settings,
    table: bool,
) -> Variational:  # fmt: skip
    model = variational(net, likelihood=likelihood)
    fit(
        model, train, validation, epochs=settings.epochs, lr=settings.lr, seed=settings.seed,
        batch_size=BATCH, standardise=table or None, checkpoint=settings.checkpoint,
        progress=settings.progress,
    )  # fmt: skip
    if isinstance(likelihood, Categorical):
        generator = torch.Generator().manual_seed(settings.seed)
        calibrate(model, validation, samples=SAMPLES, generator=generator)
    return model


def _rival(
    make_net: Callable[[], nn.Module], likelihood: Likelihood, train: Any, validation: Any,
    settings: Settings,
) -> Predictor:  # fmt: skip
    method = METHODS[settings.method]
    epochs = settings.epochs
    if isinstance(method, SWAG):
        batches = -(-len(train if isinstance(train, Images) else train[0]) // BATCH)
        epochs = epochs or max(SWAG_EPOCHS, -(-SWAG_STEPS // batches))
    arguments = {
        "epochs": epochs, "lr": settings.lr, "batch_size": BATCH,
        "checkpoint": settings.checkpoint, "progress": settings.progress,
    }  # fmt: skip
    task = MethodTask(make_net, train, validation, likelihood, None, settings.seed, arguments)
    predictor = method.fit_task(task)
    if isinstance(likelihood, ContinuousLikelihood):  # with `epochs` the scale is that of training
        generator = torch.Generator().manual_seed(settings.seed)
        calibrate(predictor, validation, samples=SAMPLES, generator=generator)
    return predictor


@contextmanager
def _checkpoints(settings: Settings) -> Iterator[None]:
    """Remove the checkpoints of a run that diverged: another learning rate is another run."""
    try:
        yield
    except TrainingDivergedError:
        if settings.checkpoint is not None:
            shutil.rmtree(settings.checkpoint, ignore_errors=True)
        raise


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator, and restore it afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def with_held_out(found: FileModel, validation: Any, held_out: Any, note: Note) -> FileModel:
    """Return the model with what decides sets, intervals and foreign inputs."""
    inputs, targets = _pair(held_out)
    scores = None
    if len(targets):
        prediction = found.predict(inputs)
        scores = nonconformity(prediction, targets).flatten().sort().values
        shown = prediction.scores(targets)
        names = ("accuracy", "nll") if found.classes else ("rmse", "nll")
        results = ", ".join(f"{name} {shown[name]:.4g}" for name in names)
        note(f"on {len(targets)} held-out examples: {results}")
    else:
        note(
            "too few examples to hold some out for sets or intervals: theirs are those of the "
            "model, without a guarantee"
        )
        prediction = found.predict(_pair(validation)[0])
    if functions_in(prediction) == 1:
        note("a single function can't disagree: uncertainty makes no input foreign")
        return replace(found, scores=scores)
    ordered = epistemic(prediction).cpu().double().sort().values
    largest = ordered[math.ceil(QUANTILE * len(ordered)) - 1].item()
    return replace(found, scores=scores, foreign=largest)


def _pair(data: Any) -> tuple[Any, Tensor]:
    return (data, data.targets) if isinstance(data, Images) else data
