"""Initialization of a plain network by a parametrization."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import nn

from tacit.scaling.parametrization import Parametrization
from tacit.scaling.parametrization.base import matching
from tacit.scaling.parametrization.standard import given_or_standard
from tacit.scaling.parametrized import Parametrized


def initialize(
    net: nn.Module,
    parametrization: Parametrization | None = None,
    *,
    only: Sequence[str] | None = None,
    generator: torch.Generator | None = None,
) -> None:
    """Reinitialize the parameters of a plain network in place, as its parametrization prescribes.

    Weights and embeddings are drawn from a normal distribution, biases are set to zero; norm layers
    and parameters outside of layers stay unchanged.

    Args:
        net: The network. Call this before `variational`, whose means are the network's parameters.
        parametrization: The parametrization; `tacit.Standard()` by default.
        only: Names or globs of the layers to reinitialize; all by default.
        generator: Source of randomness.

    Examples:
        >>> import tacit, torch
        >>> net = torch.nn.Linear(100, 50)
        >>> tacit.initialize(net, generator=torch.Generator().manual_seed(0))
        >>> round(net.weight.std().item(), 2)
        0.1
    """
    if isinstance(net, Parametrized):
        raise TypeError("initialize: expected a plain network; initialize it before `variational`.")
    parametrization = given_or_standard("initialize", net, parametrization)
    scaled = parametrization.parameters_of(net)
    chosen = _chosen(scaled.keys(), only)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name not in chosen:
                continue
            if scaled[name].fans.kind in ("weight", "embedding"):
                parameter.normal_(0.0, parametrization.std(scaled[name]), generator=generator)
            elif scaled[name].fans.kind == "bias":
                parameter.zero_()


def _chosen(names: Collection[str], only: Sequence[str] | None) -> set[str]:
    if only is None:
        return set(names)
    if not isinstance(only, Sequence) or not all(isinstance(pattern, str) for pattern in only):
        raise TypeError(f"only: expected names or globs of layers, received {only!r}.")
    chosen: set[str] = set()
    for pattern in [only] if isinstance(only, str) else only:
        found = matching(pattern, names)
        if not found:
            listed = ", ".join(names)
            raise ValueError(f"only: no parameter matches {pattern!r}. Parameters: {listed}.")
        chosen.update(found)
    return chosen
