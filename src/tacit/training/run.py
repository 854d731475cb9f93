"""The state of a training run, as saved in a checkpoint and changed by each step."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit._support.files import check_fits
from tacit.calling import Variational
from tacit.calling.arguments import Draws
from tacit.data.batches import Batch, Batches
from tacit.likelihood import Likelihood
from tacit.training import checkpoints as files
from tacit.training.averaging import Average, recompute_statistics
from tacit.training.checkpoints import Checkpoint
from tacit.training.coupling import coupling, examples_in
from tacit.training.history import History
from tacit.training.identity import check_same_run, describe_network, unchanged
from tacit.training.objective import ExpectedLoss
from tacit.training.optim.sgd import SGD

if TYPE_CHECKING:
    from lightning_fabric import Fabric

WINDOW = 0.1  # part of the steps so far that is averaged, if validation data end training
MARGIN = 0.002  # smallest improvement of the validation NLL, in nats, that counts
PATIENCE = 500  # least number of steps without a better validation NLL before training stops


@dataclass(frozen=True)
class Settings:
    """Settings that must be equal for a run to resume from a checkpoint; epochs may grow.

    `automatic` means that validation data decide when training ends; `epochs` is then a bound.
    """

    epochs: int
    lr: float
    optimizer: str
    momentum: float | None
    weight_decay: float
    batch_size: int
    samples: int
    draws: Draws | None
    factor_speed: float | None
    average: float
    precision: str
    seed: int
    schedule: str
    objective: str
    early_stopping: int | None
    standardise: bool | None
    automatic: bool


class Run:
    """A training run: model, optimizer, position in the data, and history.

    Args:
        fabric: Devices and processes.
        model: The model; it is moved to the device.
        optimizer: The optimizer of the model's parameters.
        likelihood: The likelihood, which defines the loss.
        settings: Settings that must be equal to resume from a checkpoint.
        data: The training data.
        folder: Folder of the checkpoints, or None.
    """

    def __init__(
        self,
        fabric: Fabric,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        likelihood: Likelihood,
        settings: Settings,
        data: Batches,
        folder: str | Path | None,
    ) -> None:
        self.fabric, self.raw, self.settings, self.data = fabric, model, settings, data
        # Submodules that the user put in eval mode, for instance batch norm, stay in eval mode.
        self._frozen = [m for m in model.modules() if model.training and not m.training]
        wrapped: Any = fabric.setup(model, optimizer)
        self.model, self.optimizer = wrapped
        self.like = next(model.parameters())  # determines the device and dtype of inputs
        self.likelihood = likelihood.to(self.device)
        self._parts: dict[str, nn.Module] = {"model": model}
        if all(likelihood is not part for part in model.modules()):
            self._parts["likelihood"] = likelihood
        for group in self.optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        self.folder = None if folder is None else Path(folder)
        self.draws = settings.draws  # None until the first batch shows whether it can be split
        self.fits_scale = settings.objective == ExpectedLoss().fingerprint()
        self.identity: dict[str, Any] = {}
        self.epoch, self.done, self.loss_sum = 0, 0, 0.0  # done: steps taken in this epoch
        self.history = History()
        self.average = Average()
        self.best: dict[str, Tensor] = {}
        self._epoch_start: dict[str, Tensor] = {}
        self._good: dict[str, Tensor] = {}  # the start of the epoch with the smallest loss
        self._smallest = math.inf
        self._saved_random: Checkpoint | None = None
        self._first_save = True  # no checkpoint of this run was read or written yet
        # Draws differ between processes; the order of the data has its own seed (see Batches).
        random.seed(settings.seed)
        np.random.seed(settings.seed % 2**32)
        torch.manual_seed((settings.seed + 1) * 2_000_003 + fabric.global_rank)

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self.fabric.device

    @property
    def _precision(self) -> Any:
        """Fabric's precision plugin; for 16-mixed its state is the loss scale."""
        return self.fabric.strategy.precision

    @property
    def step(self) -> int:
        """Number of steps taken so far."""
        return self.epoch * len(self.data) + self.done

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole run."""
        return self.settings.epochs * len(self.data)

    @property
    def mean_loss(self) -> float:
        """Mean loss over the epoch's steps so far."""
        return self.loss_sum / max(1, self.done)

    @property
    def finished(self) -> bool:
        """Whether training has ended."""
        return self.epoch >= self.settings.epochs or self.history.stopped != "epochs"

    @property
    def within_block(self) -> bool:
        """Whether the next draw of `tacit.SGD` uses the current noise basis.

        Saving a checkpoint settles deferred updates and starts a new basis. Within a block this
        would change the noise and the rounding of later steps, so that the resumed run would not
        give the same bits.
        """
        optimizer = self.optimizer.optimizer
        return isinstance(optimizer, SGD) and optimizer.within_block

    def begin_epoch(self) -> None:
        """Switch to train mode, and keep a copy of the state."""
        self.raw.train()
        for module in self._frozen:
            module.training = False
        self._epoch_start = self._state()
        self._good = self._good or self._epoch_start

    def batches(self) -> Iterator[Batch]:
        """Return the remaining batches of the epoch."""
        saved, self._saved_random = self._saved_random, None
        if saved is not None:
            files.set_random_state(saved, self.device)
        remaining = self.data.epoch(self.settings.seed, self.epoch, skip=self.done)
        if saved is not None and self.done:
            # Skipping batches may have consumed random numbers.
            files.set_random_state(saved, self.device)
        return remaining

    def choose_draws(self, batch: Batch, default: int) -> None:
        """Choose the number of draws per step with the first batch that can be split."""
        if self.draws is not None or not isinstance(self.raw, Variational):
            return
        several = examples_in(self.raw, batch, self.like) != 1
        obstacle = coupling(self.raw, batch, self.like, default) if several else None
        if self.any_process(obstacle is not None):
            self.draws = 1
            if self.fabric.is_global_zero:
                reason = obstacle or "another process can't split its part of a batch"
                warnings.warn(
                    f"fit: one draw of the weights per step instead of {default}, because "
                    f"{reason}. Pass draws=1 to choose this without a warning.",
                    stacklevel=4,
                )
        elif not self.any_process(not several):
            self.draws = default
        self.raw.draws = self.draws or default

    def set_learning_rate(self, factor: Callable[[float], float]) -> float:
        """Set all learning rates for the next step, and return the scheduled base rate."""
        now = factor(self.step / self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * now
        return self.settings.lr * now

    def end_step(self, loss: float) -> None:
        """Count a step; in the last part of training, add the model to the average."""
        self.done += 1
        self.loss_sum += loss
        # Within a block, access to the parameters would change the noise of later steps; at the end
        # of an epoch they are settled anyway.
        settled = not self.within_block or self.done == len(self.data)
        if settled and self.settings.automatic:
            self.average.update(self._parameters(), WINDOW * self.average.count)
        elif settled and self.step > self.total_steps * (1 - self.settings.average):
            self.average.update(self._parameters())

    def end_epoch(self, row: dict[str, float]) -> None:
        """Add an epoch to the history; with early stopping, keep the best model."""
        self.history.epochs.append(row)
        if row["loss"] < self._smallest:
            self._smallest, self._good = row["loss"], self._epoch_start
        self.epoch, self.done, self.loss_sum = self.epoch + 1, 0, 0.0
        if not self.stops_early:
            return
        scores = self.history["nll"]
        best = min(range(len(scores)), key=scores.__getitem__)
        if best == len(scores) - 1:
            self.best = self._state()
        patience = self.settings.early_stopping
        if patience is None:
            # Classes that are separable improve for ever, by less and less.
            best = next(i for i, score in enumerate(scores) if score <= scores[best] + MARGIN)
            patience = max(-(-PATIENCE // len(self.data)), best + 1)
        if len(scores) - 1 - best >= patience:
            self.history.stopped = "early stopping"

    @property
    def stops_early(self) -> bool:
        """Whether training stops when the validation NLL no longer improves."""
        return self.settings.automatic or self.settings.early_stopping is not None

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Set the model to its averaged parameters, if any, within the context."""
        with self.average.in_place_of(self._parameters()) if self.average.count else nullcontext():
            yield

    def use_result(self, calls: Callable[[], Iterable[Callable[[], Any]]]) -> None:
        """Set the model to the best epoch under early stopping, else to the average if any.

        Args:
            calls: Returns functions that each call the model on a batch of training data.
        """
        if self.stops_early and self.best:
            self._load(self.best)
        elif self.average.count:
            self.average.copy_to(self._parameters())
        if self.average.count:
            self.average = Average()
            recompute_statistics(self.raw, calls())

    def restore_good(self) -> None:
        """Restore the model from the start of the epoch with the smallest loss.

        One epoch back is not enough: the loss may stay finite for a while after a bad step.
        """
        self._load(self._good)

    @property
    def finite(self) -> bool:
        """Whether all parameters are finite."""
        return all(bool(p.isfinite().all()) for p in self.raw.parameters())

    def any_process(self, flag: bool) -> bool:
        """Return whether the flag is set in any process: all must stop after the same step."""
        if self.fabric.world_size == 1:
            return flag
        total: Any = self.fabric.all_reduce(torch.tensor(float(flag)), reduce_op="sum")
        return bool(total.item() > 0)

    def save(self) -> None:
        """Write a checkpoint, if the run has a folder for checkpoints."""
        if self.folder is None:
            return
        states = [files.random_state(self.device)]
        if self.fabric.world_size > 1:
            states = [states[0]] * self.fabric.world_size
            torch.distributed.all_gather_object(states, files.random_state(self.device))
        if self.fabric.is_global_zero:
            files.write(self.folder, self.step, self._checkpoint(states), alone=self._first_save)
        self._first_save = False
        self.fabric.barrier()

    def restore(self) -> bool:
        """Load the newest checkpoint, if any; return whether there is one."""
        saved = self._read()
        if saved is None:
            return False
        self._first_save = False
        self.draws = saved.data["draws"]
        self.epoch, self.done = saved.data["epoch"], saved.data["done"]
        self.loss_sum = saved.data["loss_sum"]
        self.history = History.from_dict(saved.data["history"])
        if self.history.stopped == "interrupted":
            self.history.stopped = "epochs"
        self._load(_part(saved.tensors, "state."))
        self.best = _part(saved.tensors, "best.")
        averaged = _part(saved.tensors, "average.")
        self.average = Average(_moved(averaged, self.device), saved.data["averaged"])
        files.load_optimizer_state(
            self.optimizer.optimizer,
            Checkpoint(_part(saved.tensors, "optimizer."), saved.data["optimizer"]),
        )
        self._precision.load_state_dict(saved.data["precision"])
        rank = self.fabric.global_rank
        self._saved_random = Checkpoint(
            _part(saved.tensors, f"random.{rank}."), saved.data["random"][rank]
        )
        return True

    def _read(self) -> Checkpoint | None:
        """Return the newest checkpoint, read by the first process and sent to all others."""
        if self.folder is None:
            return None
        if self.fabric.world_size == 1:
            return self._read_own(self.folder)
        saved: Checkpoint | None = None
        found: list[Any] = [None]  # the checkpoint's data and shapes, an error, or None
        if self.fabric.is_global_zero:
            try:
                saved = self._read_own(self.folder)
            except Exception as error:  # any error: the other processes wait for a reply
                found = [error]
            if saved is not None:
                shapes = {name: (t.shape, t.dtype) for name, t in saved.tensors.items()}
                found = [(saved.data, shapes)]
        torch.distributed.broadcast_object_list(found, src=0)
        if isinstance(found[0], Exception):
            raise found[0]
        return None if found[0] is None else self._broadcast(saved, *found[0])

    def _read_own(self, folder: Path) -> Checkpoint | None:
        """Return the newest checkpoint in a folder.

        Raises:
            ValueError: If it is of another run.
        """
        saved = files.read_newest(folder)
        if saved is not None:
            check_same_run(folder, saved.data["settings"], self.identity)
        return saved

    def _broadcast(
        self, saved: Checkpoint | None, data: Mapping[str, Any], shapes: Mapping[str, Any]
    ) -> Checkpoint:
        """Return the first process's checkpoint, sent tensor by tensor."""
        tensors = {}
        for name, (shape, dtype) in shapes.items():
            tensor = torch.empty(shape, dtype=dtype) if saved is None else saved.tensors[name]
            tensor = tensor.to(self.device)
            torch.distributed.broadcast(tensor, src=0)
            tensors[name] = tensor.cpu()
        return Checkpoint(tensors, data)

    def _checkpoint(self, random_states: list[Checkpoint]) -> Checkpoint:
        stepper = files.optimizer_state(self.optimizer.optimizer)
        network = unchanged(self.identity["network"], describe_network(self.raw))
        tensors = {
            **_prefixed(self._state(), "state."),
            **_prefixed(self.best, "best."),
            **_prefixed(self.average.values, "average."),
            **_prefixed(stepper.tensors, "optimizer."),
        }
        for rank, state in enumerate(random_states):
            tensors.update(_prefixed(state.tensors, f"random.{rank}."))
        return Checkpoint(
            tensors,
            {
                "settings": {**self.identity, "network": network},
                "epoch": self.epoch,
                "done": self.done,
                "draws": self.draws,
                "loss_sum": self.loss_sum,
                "averaged": self.average.count,
                "history": self.history.to_dict(),
                "optimizer": stepper.data,
                "precision": self._precision.state_dict(),
                "random": [state.data for state in random_states],
            },
        )

    def _parameters(self) -> dict[str, Tensor]:
        return {
            f"{part}.{name}": parameter
            for part, module in self._parts.items()
            for name, parameter in module.named_parameters()
        }

    def _state(self) -> dict[str, Tensor]:
        """Return a copy of all parameters and buffers."""
        return {
            f"{part}.{name}": tensor.detach().clone()
            for part, module in self._parts.items()
            for name, tensor in module.state_dict().items()
        }

    def _load(self, state: Mapping[str, Tensor]) -> None:
        check_fits(self.folder, self._state(), state)
        for part, module in self._parts.items():
            module.load_state_dict(_part(state, f"{part}."))


def _moved(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _prefixed(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
