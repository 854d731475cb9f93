"""Base class of methods: settings, and training that turns a task into a predictor."""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tacit._support import checks
from tacit._support.memory import peak_memory
from tacit.inference import Cost, Predictor
from tacit.likelihood import Categorical, Likelihood
from tacit.methods.task import Task
from tacit.scaling import Parametrization


class Method(ABC):
    """A method of uncertainty quantification; subclasses are frozen dataclasses of settings.

    Examples:
        >>> import tacit
        >>> from tacit.methods import DeepEnsemble, MCDropout
        >>> train, validation, test = tacit.data.digits()
        >>> def make_net():
        ...     return tacit.models.MLP(64, [32], 10)
        >>> for method in (DeepEnsemble(2), MCDropout()):
        ...     predictor = method.fit(make_net, train, validation, epochs=5, lr=0.1)
        ...     print(method, tacit.predict(predictor, test[0]).probs.shape)
        DeepEnsemble(members=2) torch.Size([797, 10])
        MCDropout(rate=0.1, calibrated=False) torch.Size([797, 10])
    """

    def fit(
        self,
        make_net: Callable[[], nn.Module],
        train: Any,
        validation: Any = None,
        *,
        epochs: int | None,
        lr: float | None,
        likelihood: Likelihood | None = None,
        parametrization: Parametrization | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Predictor:
        """Train on data and return the predictor.

        Args:
            make_net: A function that returns a new network on each call.
            train: A pair of tensors or arrays, `tacit.data.Images`, a Dataset, or a DataLoader.
            validation: Held-out data in the same form, for calibration and tuning; required by some
                methods.
            epochs: Number of passes over the data; None if validation data decide, as in
                `tacit.fit`, for each network.
            lr: Base learning rate, before the parametrization's scaling; None for that of
                `tacit.fit`.
            likelihood: Likelihood of the outputs, which is copied; `Categorical()` by default.
            parametrization: Sets initial scales and learning rates; by default the weights from
                `make_net` are kept.
            seed: Seed of all random numbers.
            **settings: Further arguments of `tacit.fit`: batch_size, optimizer, schedule, progress,
                ...
        """
        if isinstance(make_net, nn.Module) or not callable(make_net):
            raise TypeError(
                "make_net: expected a function that makes a network, so that each method and "
                f"member has its own; received {type(make_net).__name__}."
            )
        if self.needs_validation and validation is None:
            raise ValueError(f"{type(self).__name__} needs validation data.")
        copied = copy.deepcopy(likelihood) if likelihood is not None else Categorical()
        settings = {"epochs": epochs, "lr": lr, **settings}
        return self.fit_task(
            Task(make_net, train, validation, copied, parametrization, seed, settings)
        )

    def fit_task(self, task: Task) -> Predictor:
        """Train on a task and return the predictor, with its cost."""
        import lightning_fabric  # noqa: F401 - import before the clock starts

        start = time.perf_counter()
        with torch.random.fork_rng(), peak_memory() as peak:
            torch.manual_seed(task.seed)
            predictor = self.learn(task)
        if not isinstance(predictor, Predictor):
            raise TypeError(
                f"{type(self).__name__}.learn: expected it to return a predictor, such as "
                f"tacit.methods.Plain(net, task.likelihood), received {type(predictor).__name__}."
            )
        seconds, most = time.perf_counter() - start, peak()
        if task.networks is not None and task.networks.seconds_saved:
            # Count the training time of cached networks; their peak memory is unknown.
            seconds, most = seconds + task.networks.seconds_saved, math.nan
        kept = sum(t.numel() for t in predictor.state_dict().values())
        predictor.cost = Cost(kept, seconds, most)
        return predictor.eval()

    @property
    def needs_validation(self) -> bool:
        """Whether the method needs validation data."""
        return False

    @abstractmethod
    def learn(self, task: Task) -> Predictor:
        """Train on a task and return the predictor."""


def check_counts(method: Method, *names: str) -> None:
    """Raise an error unless the named settings of a method are positive integers or None."""
    for name in names:
        if getattr(method, name) is not None:
            checks.positive_integer(f"{type(method).__name__}({name})", getattr(method, name))
