"""A network to train and data to train it on: what a method is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tacit.calling import Variational, variational
from tacit.likelihood import Likelihood
from tacit.methods.network_cache import NetworkCache
from tacit.models.pretrained import Loaded
from tacit.scaling import Parametrization, initialize
from tacit.training import History, fit
from tacit.weights import Where


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
        networks: A cache of this task's trained plain networks, or None.
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

    def variational(self, where: Where = None, rank: int | None = None) -> Variational:
        """Return a new variational model of the network, yet to be trained.

        Args:
            where: Which layers are random, and how: as `tacit.variational` takes it.
            rank: Of the layers that `where` gives no covariance.
        """
        return variational(
            self.net(), where, rank=rank, likelihood=self.likelihood,
            parametrization=self.parametrization,
        )  # fmt: skip

    def trained(self, member: int = 0) -> nn.Module:
        """Return a plain network that is trained: where several methods begin.

        Args:
            member: Of several, each with weights and an order of the data of its own.
        """
        net = self.net(member)
        if self.networks is None:
            self.fit(net, member=member)
        elif not self.networks.load(net, member):
            self.networks.save(net, member, sum(self.fit(net, member=member)["seconds"]))
        return net


def _not_pretrained(net: nn.Module) -> list[str] | None:
    """Return the parameters to draw, those that came from no file; None for all."""
    loaded = getattr(net, "loaded", None)  # of the networks in `tacit.models`
    if not isinstance(loaded, Loaded):
        return None
    return [name for name, _ in net.named_parameters() if name in loaded.kept]
