"""What every method is: settings, and a way from a network and data to a predictor."""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tacit.likelihood import Categorical, Likelihood
from tacit.methods.kept import Kept
from tacit.methods.memory import peak_memory
from tacit.models.pretrained import Loaded
from tacit.parametrization import Parametrization
from tacit.predictor import Cost, Predictor
from tacit.scaling import initialize
from tacit.training import History, fit


@dataclass(frozen=True)
class Task:
    """A network to train and data to train it on.

    Args:
        make_net: Makes a new network.
        train: Data as `tacit.fit` takes them.
        validation: The same, or None.
        likelihood: What outputs mean.
        parametrization: How weights start and learning rates scale; None leaves weights as made.
        seed: Of everything random.
        settings: Further arguments of `tacit.fit`: epochs, lr and others.
        kept: Plain networks of this task that are trained already, if any are kept.
    """

    make_net: Callable[[], nn.Module]
    train: Any
    validation: Any
    likelihood: Likelihood
    parametrization: Parametrization | None
    seed: int
    settings: Mapping[str, Any]
    kept: Kept | None = None

    def net(self, member: int = 0) -> nn.Module:
        """Return a new network, the same each time.

        Args:
            member: Of several, each with weights of its own.
        """
        with torch.random.fork_rng():
            torch.manual_seed(self.seed * 1009 + member)
            net = self.make_net()
            if not isinstance(net, nn.Module):
                raise TypeError(
                    f"make_net: expected a function that makes a network; it returned {net!r:.80}."
                )
            if self.parametrization is not None:
                initialize(net, self.parametrization, only=_not_pretrained(net))
        return net

    def fit(self, model: nn.Module, *, member: int = 0, **changes: Any) -> History:
        """Train a model by `tacit.fit`.

        Args:
            model: A plain network, or a variational model with its likelihood.
            member: Of several, each with an order of the data of its own.
            **changes: Arguments of `tacit.fit` that are not those of the task.
        """
        arguments = {**self.settings, "seed": self.seed * 1009 + member, **changes}
        # After each epoch only where something looks at it: for small networks it takes long.
        watched = self.settings.get("early_stopping") or self.settings.get("callbacks")
        validation = self.validation if watched else None
        if getattr(model, "likelihood", None) is None:
            arguments |= {"likelihood": self.likelihood, "parametrization": self.parametrization}
        return fit(model, self.train, validation, **arguments)

    def trained(self, member: int = 0) -> nn.Module:
        """Return a plain network that is trained: where several methods begin.

        Args:
            member: Of several, each with weights and an order of the data of its own.
        """
        net = self.net(member)
        if self.kept is None:
            self.fit(net, member=member)
        elif not self.kept.load(net, member):
            self.kept.save(net, member, sum(self.fit(net, member=member)["seconds"]))
        return net


def _not_pretrained(net: nn.Module) -> list[str] | None:
    """Return the parameters to draw, those that came from no file; None for all."""
    loaded = getattr(net, "loaded", None)  # of the networks in `tacit.models`
    if not isinstance(loaded, Loaded):
        return None
    return [name for name, _ in net.named_parameters() if name in loaded.kept]


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
        if task.kept is not None and task.kept.spared:
            seconds, most = seconds + task.kept.spared, math.nan  # as if it had trained them all
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
