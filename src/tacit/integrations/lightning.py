"""PyTorch Lightning: a module that trains a variational model, and a callback that calibrates it.

Requires PyTorch Lightning: `pip install 'tacit-torch[lightning]'`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tacit._support import checks
from tacit.calling import Variational
from tacit.data.batches import Batch, as_batch
from tacit.inference.calibration import calibrate
from tacit.inference.functions import drawn_functions, likelihood_of, tensor_of
from tacit.inference.scores import predictive_for, targets_of
from tacit.likelihood import Likelihood
from tacit.likelihood.predictive import Predictive
from tacit.metrics import Streaming
from tacit.training.arguments import (
    learning_rate,
    momentum_of,
    reset_calibration,
    seed_number,
)
from tacit.training.optim.by_name import make_optimizer

if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningModule, Trainer
else:
    # Lightning has two names, `lightning.pytorch` and `pytorch_lightning`, whose classes don't
    # mix; the one that the program has imported counts.
    name = "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
    try:
        found = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ModuleNotFoundError(
            "tacit.integrations.lightning needs PyTorch Lightning: "
            "pip install 'tacit-torch[lightning]'",
            name=name,
        ) from None
    Callback, LightningModule, Trainer = found.Callback, found.LightningModule, found.Trainer

LOGGED = ("nll", "accuracy", "ece", "rmse")
"""Metrics that `VariationalModule` logs, where the likelihood has them."""


class VariationalModule(LightningModule):
    """A LightningModule that trains a variational model with a likelihood on the expected loss.

    Batches are pairs of inputs and targets, or dicts of inputs with the targets under "labels".
    Training logs `train_loss`; validation logs `val_nll` and `val_accuracy`, `val_ece` or
    `val_rmse` of the predictions, exact over all processes; several loaders count together.
    `Trainer.predict` returns a `Predictive` for each batch. Functions are drawn once for each
    validation, test or prediction run, the same ones in all processes, and leave the random numbers
    of training as they are.

    A LightningModule of your own needs none of this: `tacit.variational` models work in any.

    Args:
        model: A variational model with a likelihood.
        lr: Base learning rate; 0.03 by default, 0.002 for optimizers like Adam.
        optimizer: Name of the optimizer: "sgd", "adam", "adamw" and others. For schedules, override
            `configure_optimizers`.
        momentum: Momentum of SGD, 0.9 by default; an error for other optimizers.
        weight_decay: Weight decay of the means.
        factor_speed: How fast the prior is forgotten; see `Variational.param_groups`.
        samples: Number of functions in validation and prediction.
        seed: Seed of these functions.

    Raises:
        TypeError: If the model is not variational.
        ValueError: If it has no likelihood.

    Examples:
        >>> import tacit, torch
        >>> from tacit.integrations.lightning import VariationalModule
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> model = tacit.variational(net, likelihood=tacit.Categorical())
        >>> module = VariationalModule(model, lr=0.01)
        >>> module.training_step((torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 0])), 0).shape
        torch.Size([])
    """

    def __init__(
        self,
        model: Variational,
        lr: float | None = None,
        optimizer: str = "sgd",
        *,
        momentum: float | None = None,
        weight_decay: float = 0.0,
        factor_speed: float | None = None,
        samples: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(model, Variational):
            raise TypeError(
                "VariationalModule: expected a model made by tacit.variational, received "
                f"{type(model).__name__}."
            )
        likelihood_of(model, None)
        self.model = model
        self.lr = learning_rate(lr, optimizer)
        self.optimizer = optimizer
        self.settings = {"weight_decay": weight_decay, "factor_speed": factor_speed}
        chosen = momentum_of(momentum, optimizer)
        self.momentum = {} if chosen is None else {"momentum": chosen}
        self.samples = checks.positive_integer("samples", samples)
        self.seed = seed_number(seed)
        self.functions: Callable[..., Tensor] | None = None
        self.collected = Streaming()

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the model."""
        return likelihood_of(self.model, None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.model(*args, **kwargs)

    def configure_optimizers(self) -> Any:
        """Return the optimizer, over the model's parameter groups."""
        settings: dict[str, Any] = {**self.settings, **self.momentum}
        return make_optimizer(self.model, self.lr, self.optimizer, **settings)

    def on_train_start(self) -> None:
        """Reset the temperature of predictions, and let every process draw noise of its own."""
        reset_calibration(self.likelihood)
        if self.global_rank:  # Lightning seeds all processes alike
            torch.manual_seed(torch.initial_seed() + self.global_rank)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the likelihood's training loss, with random weights."""
        found = as_batch("train", batch)
        targets = targets_of(found, "train")
        outputs = tensor_of(self._call(found, self.model))
        loss = self.likelihood.training_loss(outputs, targets, samples=False)
        if self._trainer is not None:
            self.log("train_loss", loss.detach(), batch_size=len(targets), prog_bar=True)
        return loss

    def on_validation_epoch_start(self) -> None:
        """Draw the functions."""
        self._begin()

    def on_test_epoch_start(self) -> None:
        """Draw the functions."""
        self._begin()

    def on_predict_epoch_start(self) -> None:
        """Draw the functions."""
        self._begin()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add a batch to the metrics."""
        self._score("validation", batch)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add a batch to the metrics."""
        self._score("test", batch)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Predictive:
        """Return the predictive distribution for a batch; targets in it are ignored."""
        assert self.functions is not None
        found = as_batch("predict", batch, targets=False)
        return self.likelihood.predictive(self._call(found, self.functions))

    def on_validation_epoch_end(self) -> None:
        """Log the metrics."""
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics."""
        self._finish("test")

    def on_predict_epoch_end(self) -> None:
        """Release the functions."""
        self.functions = None

    def _call(self, batch: Batch, model: Callable[..., Any]) -> Any:
        return batch.call(model, next(self.model.parameters()))

    def _begin(self) -> None:
        # A generator of its own: validation doesn't change the draws of training.
        generator = torch.Generator(self.device).manual_seed(self.seed)
        with torch.no_grad():
            self.functions = drawn_functions(self.model, self.samples, generator=generator)
        self.collected = Streaming()

    def _score(self, name: str, batch: Any) -> None:
        assert self.functions is not None
        found = as_batch(name, batch)
        targets = targets_of(found, name)
        prediction = predictive_for(self.likelihood, self._call(found, self.functions), targets)
        self.collected.update(prediction.errors(targets), prediction.sums(targets))

    def _finish(self, prefix: str) -> None:
        scores = self.collected.gather().compute()
        self.functions, self.collected = None, Streaming()
        for metric in LOGGED:
            if metric in scores:
                # The values are those of all processes; their mean changes nothing.
                value = torch.tensor(scores[metric], dtype=torch.float32, device=self.device)
                self.log(f"{prefix}_{metric}", value, sync_dist=True, prog_bar=metric == "nll")


class Calibrate(Callback):
    """Set the temperature of a classifier, or the noise scale of real targets, after training.

    The callback calls `tacit.calibrate`.

    Checkpoints that the Trainer has written before don't have the temperature; save the model
    afterwards, by `trainer.save_checkpoint` or `tacit.save`.

    Args:
        data: Validation data, as `tacit.calibrate` takes them; by default the Trainer's validation
            data, of which each process must then see all: pass `data` with several processes.
        samples: Number of functions drawn.
        seed: Seed of these functions.

    Examples:
        >>> from tacit.integrations.lightning import Calibrate
        >>> from pytorch_lightning import Trainer
        >>> trainer = Trainer(callbacks=[Calibrate()], logger=False, accelerator="cpu")
    """

    def __init__(self, data: Any = None, *, samples: int = 32, seed: int = 0) -> None:
        super().__init__()
        self.data = data
        self.samples = checks.positive_integer("samples", samples)
        self.seed = seed_number(seed)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise an error before training rather than after it."""
        if stage != "fit":
            return
        _model_in(pl_module)
        if self.data is None and not trainer.enable_validation:
            raise ValueError(
                "Calibrate: the Trainer has no validation data, or the module no validation_step; "
                "pass the data, Calibrate(data)."
            )
        if self.data is None and trainer.world_size > 1:
            raise ValueError(
                f"Calibrate: each of the {trainer.world_size} processes has a part of the "
                "Trainer's validation data; expected all of them: Calibrate(data)."
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Calibrate the model."""
        data = trainer.val_dataloaders if self.data is None else self.data
        if data is None:
            raise ValueError(
                "Calibrate: the Trainer has not validated yet; pass the data, Calibrate(data)."
            )
        model = _model_in(pl_module)
        generator = torch.Generator(pl_module.device).manual_seed(self.seed)
        calibrate(model, data, samples=self.samples, generator=generator)


def _model_in(module: LightningModule) -> Variational:
    """Return the variational model in a LightningModule."""
    models = [part for part in module.modules() if isinstance(part, Variational)]
    if len(models) != 1:
        raise ValueError(
            f"Calibrate: expected one variational model in {type(module).__name__}, found "
            f"{len(models)}."
        )
    return models[0]
