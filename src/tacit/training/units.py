"""Units of tables: inputs and real targets are standardised within the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tacit.calling import Variational
from tacit.data.batches import Batches
from tacit.inference.scores import targets_of
from tacit.likelihood import ContinuousLikelihood, Likelihood
from tacit.models.standardise import Standardise, column_units, positive_std
from tacit.weights.adapter import adapted_layers


class Moments:
    """Mean and standard deviation of the rows of tensors that come batch by batch."""

    def __init__(self) -> None:
        self.count, self.dtype = 0, torch.float64
        self.mean: Tensor = torch.zeros(())
        self.squares: Tensor = torch.zeros(())  # sum of squared deviations from the mean

    def add(self, rows: Tensor) -> None:
        """Add rows, (B, ...); combined as by Chan et al. (1983), which doesn't cancel digits."""
        self.dtype = rows.dtype if rows.is_floating_point() else torch.float64
        rows = rows.detach().cpu().double()
        mean, total = rows.mean(0), self.count + len(rows)
        difference = mean - self.mean
        own = (rows - mean).square().sum(0)
        self.squares = self.squares + own + difference.square() * (self.count * len(rows) / total)
        self.mean = self.mean + difference * (len(rows) / total)
        self.count = total

    @property
    def std(self) -> Tensor:
        """Standard deviation, 1 where all rows are equal."""
        return positive_std(self.mean, self._deviation, self.dtype)

    @property
    def units(self) -> Tensor:
        """Standard deviations of columns of inputs, the size of a column where it is constant."""
        return column_units(self.mean, self._deviation, self.dtype)

    @property
    def _deviation(self) -> Tensor:
        return (self.squares / self.count).sqrt()


def set_units(
    model: nn.Module, likelihood: Likelihood, data: Batches, standardise: bool | None
) -> None:
    """Standardise inputs and targets within the model, by the moments of the training data.

    Targets are those of a likelihood of real targets, which keeps their units; inputs are a single
    table, (B, D), standardised by the model itself, unless it has adapters. Units that are known
    already, from earlier training, are kept.

    Args:
        model: The model to train; only a variational one can standardise its inputs.
        likelihood: The likelihood of its outputs.
        data: The training data, undivided.
        standardise: Whether to; by default if the targets are real.
    """
    real = isinstance(likelihood, ContinuousLikelihood)
    if standardise is False or (standardise is None and not real):
        return
    outputs = real and not likelihood.has_units
    inputs = isinstance(model, Variational) and model.inputs is None
    if standardise is None and any(adapted_layers(model)):
        inputs = False  # the frozen layers were pretrained on unscaled inputs
    x, y, flat = Moments(), Moments(), False
    for batch in data.epoch() if outputs or inputs else ():
        inputs = inputs and is_table(batch.inputs, model) and batch.prepare is None
        if not (inputs or outputs):
            return
        if inputs:
            _check_finite(data.name, "inputs", batch.inputs)
            x.add(batch.inputs)
        if outputs:
            targets = targets_of(batch, data.name)
            _check_finite(data.name, "targets", targets)
            flat = targets.ndim == 1
            y.add(targets)
    if outputs and isinstance(likelihood, ContinuousLikelihood):
        mean, std = y.mean, y.std
        single = mean.numel() == 1
        likelihood.set_units(
            mean.reshape(()) if single else mean, std.reshape(()) if single else std, flat=flat
        )
    if inputs and isinstance(model, Variational):
        like = next(model.parameters())
        model.inputs = Standardise(x.mean, x.units).to(like)


def is_table(inputs: object, model: nn.Module) -> bool:
    """Return whether inputs are rows of numbers; integers may also be indices of embeddings."""
    if not isinstance(inputs, Tensor) or inputs.ndim != 2:
        return False
    if inputs.is_floating_point():
        return True
    layers = (m for m in model.modules() if any(True for _ in m.parameters(recurse=False)))
    return isinstance(next(layers, None), nn.Linear)


def _check_finite(name: str, part: str, values: Tensor) -> None:
    if values.is_floating_point() and not values.isfinite().all():
        raise ValueError(f"{name}: some {part} are not finite (NaN or infinite).")
