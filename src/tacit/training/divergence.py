"""Runs that diverge: an error if the loss is not finite, a warning if it ended high."""

from __future__ import annotations

import warnings
from typing import NoReturn

from tacit.calling import Variational
from tacit.likelihood import ContinuousLikelihood
from tacit.training.history import History
from tacit.training.run import Run
from tacit.training.units import is_table


class TrainingDivergedError(RuntimeError):
    """The loss is not finite; the model is reset to the start of the epoch with the lowest loss.

    Examples:
        >>> import tacit, torch
        >>> x = torch.randn(100, 4, generator=torch.manual_seed(0))
        >>> net, data = tacit.models.MLP(4, [8], 1), (x, x[:, :1])
        >>> try:
        ...     history = tacit.fit(net, data, likelihood=tacit.Gaussian(), lr=1e6, epochs=9)
        ... except TrainingDivergedError:  # the network is reset
        ...     history = tacit.fit(net, data, likelihood=tacit.Gaussian(), lr=0.01, epochs=9)
        >>> history["loss"][-1] < 10
        True
    """


def diverged(run: Run, what: str, lr: float) -> NoReturn:
    """Reset the model to its best state, and raise TrainingDivergedError.

    Args:
        run: The run.
        what: What is not finite, and when.
        lr: The learning rate at that time.
    """
    run.restore_good()
    if run.step == 0:
        raise TrainingDivergedError(
            f"{what}, before any training, so the learning rate is not the reason. Look for "
            "parameters that are not finite, operations such as log, division and square root in "
            "the network, and inputs on a large scale. The model is unchanged."
        )
    regression = isinstance(run.likelihood, ContinuousLikelihood) and (
        run.settings.standardise is False or not isinstance(run.raw, Variational)
    )
    raise TrainingDivergedError(
        f"{what}. Try a smaller learning rate than {lr:g}, or more draws"
        + (", and inputs and targets standardised to unit variance" if regression else "")
        + (", or standardise=True for columns on other scales" if _has_raw_columns(run) else "")
        + ". The model is reset to the start of the epoch with the smallest loss"
        + (" (untrained)." if not run.history.epochs else ".")
    )


def _has_raw_columns(run: Run) -> bool:
    """Return whether the inputs are a table that the model could have standardised, but doesn't."""
    if run.settings.standardise is not None or not isinstance(run.raw, Variational):
        return False
    batch = next(iter(run.data.epoch()))
    table = batch.prepare is None and is_table(batch.inputs, run.raw)
    return table and run.raw.inputs is None


def warn_if_worse(history: History) -> None:
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
