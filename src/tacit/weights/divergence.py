"""Divergences of a model from its prior, by layer: KL and squared 2-Wasserstein distance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from tacit.weights.distribution import Distribution
from tacit.weights.noise import Gaussian
from tacit.weights.prior import Prior

__all__ = ["kl", "squared_wasserstein"]


class RandomModel(Protocol):
    """A model with distributions over the parameters of its layers, such as `Variational`."""

    @property
    def distributions(self) -> Mapping[str, Distribution]:
        """The distributions of the random layers, by the layers' labels."""


def kl(model: RandomModel, prior: Prior) -> dict[str, Tensor]:
    """Return KL(model || prior) of each random layer; they sum to that of the model.

    Args:
        model: The model.
        prior: Its prior, from `model.prior()`.

    Returns:
        Layer's label -> divergence, a scalar with gradients.

    Raises:
        ValueError: If it is infinite, as for low-rank covariances, which are singular, or where a
            standard deviation is 0.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(4, 2), {"": tacit.Diagonal()})
        >>> prior = model.prior()
        >>> with torch.no_grad():
        ...     _ = model.module.bias.add_(1.0)
        >>> round(kl(model, prior)[""].item(), 2)  # (1 / 0.5)^2 / 2 for each of the two biases
        4.0
    """
    return _by_layer(model, prior, distribution_kl)


def squared_wasserstein(model: RandomModel, prior: Prior) -> dict[str, Tensor]:
    """Return the squared 2-Wasserstein distance of each random layer to the prior.

    |mu - mu0|^2 + |S|_F^2 + |S0|_F^2 - 2 |S0^T S|_*, with the nuclear norm |.|_*. Always finite,
    and O(P R^2) for `LowRank`. The distances sum to that of the model.

    Args:
        model: The model.
        prior: Its prior, from `model.prior()`.

    Returns:
        Layer's label -> squared distance, a scalar with gradients.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(4, 2), {"": tacit.LowRank(3)})
        >>> prior = model.prior()
        >>> with torch.no_grad():
        ...     _ = model.module.bias.add_(1.0)
        >>> round(squared_wasserstein(model, prior)[""].item(), 2)  # 1^2 for each of the two
        2.0
    """
    return _by_layer(model, prior, _squared_wasserstein)


def _by_layer(
    model: RandomModel, prior: Prior, divergence: Callable[[Distribution, Distribution], Tensor]
) -> dict[str, Tensor]:
    if not isinstance(prior, Prior):
        raise TypeError(f"prior: expected model.prior(), received {type(prior).__name__}.")
    layers = getattr(model, "distributions", None)
    if not isinstance(layers, Mapping):
        raise TypeError(
            f"model: expected a model made by tacit.variational, received {type(model).__name__}."
        )
    if layers.keys() != prior.distributions.keys():
        raise ValueError(
            f"prior: expected the layers {list(layers)}, received {list(prior.distributions)}; use "
            "the prior of this model."
        )
    found = {}
    for label, q in layers.items():
        p = prior.distributions[label]
        if (q.covariance, q.shapes) != (p.covariance, p.shapes):
            raise ValueError(
                f"prior: layer {label!r} differs from the model's in shapes or covariance; use the "
                "prior of this model."
            )
        if not isinstance(q.noise, Gaussian) or not isinstance(p.noise, Gaussian):
            raise ValueError(
                "prior: divergences have a closed form only for Gaussian noise, received "
                f"{q.noise} and {p.noise}."
            )
        found[label] = divergence(q, _like(p, q))
    return found


def distribution_kl(q: Distribution, p: Distribution) -> Tensor:
    """Return KL(q || p) of one layer; raise ValueError with the reason if it is infinite."""
    value = q.covariance.kl(_difference(q, p), q.resolved, p.resolved, q.shapes)
    if not all(bool(tensor.isfinite().all()) for tensor in (*q.mean.values(), *q.factors.values())):
        raise ValueError("KL: a mean or a factor of the model is not finite.")
    if not bool(value.isfinite()):
        raise ValueError(
            "KL: infinite, or too large to compute: a standard deviation has reached 0, the prior "
            "has one of 0, or training diverges (try a smaller learning rate)."
        )
    return value


def _squared_wasserstein(q: Distribution, p: Distribution) -> Tensor:
    distance = q.covariance.squared_distance(q.resolved, p.resolved, q.shapes)
    for part in _difference(q, p).values():
        distance = distance + part.square().sum()
    return distance


def _difference(q: Distribution, p: Distribution) -> dict[str, Tensor]:
    return {name: mean - p.mean[name] for name, mean in q.mean.items()}


def _like(p: Distribution, q: Distribution) -> Distribution:
    """Return the prior with the model's device and dtype, which may have changed since."""
    return replace(
        p,
        mean={name: tensor.to(q.mean[name]) for name, tensor in p.mean.items()},
        factors={name: tensor.to(q.factors[name]) for name, tensor in p.factors.items()},
    )
