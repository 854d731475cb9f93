"""What every method is: settings, and a way from a task to a predictor."""

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
    """A way to have a network with uncertainty. Settings are fields of a frozen dataclass."""

    def fit(
        self,
        make_net: Callable[[], nn.Module],
        train: Any,
        validation: Any = None,
        *,
        epochs: int,
        lr: float,
        likelihood: Likelihood | None = None,
        parametrization: Parametrization | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Predictor:
        """Train, and return what predicts.

        Args:
            make_net: A function that makes a network, a new one each time.
            train: A pair of tensors or arrays, `tacit.data.Images`, a Dataset, or a DataLoader.
            validation: The same, to calibrate and to tune by; some methods need it.
            epochs: Number of passes over the data.
            lr: Learning rate, before the factors of the parametrization.
            likelihood: What outputs mean; `Categorical()` if left out. It is copied.
            parametrization: How weights start and learning rates scale; if left out, weights stay
                as they are made.
            seed: Of everything random.
            **settings: Further arguments of `tacit.fit`: batch_size, optimizer, schedule, progress
                and others.
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
        """Train on a task, and return what predicts, with what it cost."""
        import lightning_fabric  # noqa: F401 - once in a process; not part of what training costs

        start = time.perf_counter()
        with torch.random.fork_rng(), peak_memory() as peak:
            torch.manual_seed(task.seed)
            predictor = self.learn(task)
        seconds, most = time.perf_counter() - start, peak()
        if task.networks is not None and task.networks.seconds_saved:
            # Report the cost of training all networks; their memory is not known.
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
        """Train on a task, and return what predicts."""


def check_counts(method: Method, *names: str) -> None:
    """Raise an error unless these settings of a method are positive integers, or None."""
    for name in names:
        if getattr(method, name) is not None:
            checks.positive_integer(f"{type(method).__name__}({name})", getattr(method, name))
