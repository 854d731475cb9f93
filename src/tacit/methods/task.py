"""The input of a method: a network, data and training settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.calling import Variational, variational
from tacit.likelihood import DiscreteLikelihood, Likelihood
from tacit.likelihood.predictive import Averaging
from tacit.methods.network_cache import NetworkCache
from tacit.models.pretrained import Loaded
from tacit.scaling import Parametrization, initialize
from tacit.training import History, fit
from tacit.training.processes import make_fabric
from tacit.weights import Where


@dataclass(frozen=True)
class Task:
    """A network to train, the data, and the training settings.

    Args:
        make_net: A function that returns a new network on each call.
        train: Training data in any form that `tacit.fit` accepts.
        validation: Held-out data in the same form, or None.
        likelihood: Likelihood of the outputs.
        parametrization: Sets initial scales and learning rates; None keeps the weights of
            `make_net`.
        seed: Seed of all random numbers.
        settings: Further arguments of `tacit.fit`: epochs, lr, ...
        networks: Cache of the trained plain networks of this task, or None.

    Examples:
        >>> import tacit, torch
        >>> x, y = torch.randn(40, 3), torch.randint(2, (40,))
        >>> settings = {"epochs": 1, "lr": 0.1, "progress": False}
        >>> likelihood, make_net = tacit.Categorical(), lambda: torch.nn.Linear(3, 2)
        >>> task = Task(make_net, (x, y), None, likelihood, None, seed=0, settings=settings)
        >>> len(task.fit(task.variational()))  # as a method does; epochs of the history
        1
    """

    make_net: Callable[[], nn.Module]
    train: Any
    validation: Any
    likelihood: Likelihood
    parametrization: Parametrization | None
    seed: int
    settings: Mapping[str, Any]
    networks: NetworkCache | None = None

    def net(self, member: int = 0) -> nn.Module:
        """Return a new network; the initialization is determined by the seed and `member`.

        Args:
            member: Index of the ensemble member.
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
        """Train a model with `tacit.fit`.

        Args:
            model: A plain network, or a variational model with its likelihood.
            member: Index of the ensemble member; determines the data order.
            **changes: Arguments of `tacit.fit` that override the settings of the task.
        """
        arguments = {**self.settings, "seed": self.seed * 1009 + member, **changes}
        if member and arguments.get("checkpoint") is not None:  # a folder belongs to one run
            arguments["checkpoint"] = Path(arguments["checkpoint"]) / f"member-{member}"
        # Validate after each epoch only if the result is used: it is slow for small networks.
        stops = self.settings.get("early_stopping") or arguments.get("epochs") is None
        validation = self.validation if stops or self.settings.get("callbacks") else None
        if getattr(model, "likelihood", None) is None:
            arguments |= {"likelihood": self.likelihood, "parametrization": self.parametrization}
        return fit(model, self.train, validation, **arguments)

    def average(self, averaging: Averaging) -> None:
        """Set how predictions average functions, if the likelihood is discrete."""
        if isinstance(self.likelihood, DiscreteLikelihood):
            self.likelihood.averaging = averaging

    def variational(self, where: Where = None, rank: int | None = None) -> Variational:
        """Return a new, untrained variational model of the network.

        Args:
            where: Random layers and their covariances, as in `tacit.variational`.
            rank: Rank of the random layers without a covariance in `where`.
        """
        return variational(
            self.net(), where, rank=rank, likelihood=self.likelihood,
            parametrization=self.parametrization,
        )  # fmt: skip

    def trained(self, member: int = 0) -> nn.Module:
        """Return a trained plain network, from the cache if there is one.

        Args:
            member: Index of the ensemble member; determines initialization and data order.
        """
        net = self.net(member)
        if self.networks is None:
            self.fit(net, member=member)
        elif self.networks.load(net, member):
            # To the device on which `fit` would have left them.
            fabric = make_fabric(self.settings.get("accelerator", "auto"), 1, "auto", "32-true")
            net.to(fabric.device)
            self.likelihood.to(fabric.device)
        else:
            self.networks.save(net, member, sum(self.fit(net, member=member)["seconds"]))
        return net


def _not_pretrained(net: nn.Module) -> list[str] | None:
    """Return the parameters to initialize, those without pretrained weights; None for all."""
    loaded = getattr(net, "loaded", None)  # set by the networks of `tacit.models`
    if not isinstance(loaded, Loaded):
        return None
    return [name for name, _ in net.named_parameters() if name in loaded.kept]
