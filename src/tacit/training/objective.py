"""Training objectives: the expected loss, alone or with a divergence from a prior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tacit._support import checks
from tacit.calling import Variational
from tacit.weights.divergence import distribution_kl, kl, squared_wasserstein
from tacit.weights.prior import Prior


class Objective(ABC):
    """A loss to minimise, computed from the mean loss over a batch.

    The paper's objectives are sums over the N training examples: sum_n E[loss_n] + penalty. Divided
    by N, this is the mean loss, which a batch estimates, plus penalty / N.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(3, 1), {"": tacit.LowRank(2)})
        >>> objective = tacit.GVI(model.prior(), strength=1.0)  # a sum over all training examples
        >>> loss = model(torch.randn(8, 3)).square().mean()  # a mean over a batch
        >>> torch.allclose(objective(loss, model, data_size=100), loss)  # still at the prior
        True
    """

    @abstractmethod
    def __call__(self, loss: Tensor, model: Variational, *, data_size: int) -> Tensor:
        """Return the loss to minimise.

        Args:
            loss: Mean loss over a batch, with random weights.
            model: The model being trained.
            data_size: N, the number of examples in the training data (not in the batch).
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a string that identifies the settings and the prior, to recognise the same run."""


@dataclass(frozen=True)
class ExpectedLoss(Objective):
    """The expected loss alone: the implicit bias of SGD keeps the model close to the prior.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(3, 1), {"": tacit.LowRank(2)})
        >>> loss = model(torch.randn(8, 3)).square().mean()
        >>> objective = tacit.ExpectedLoss()  # or GVI(model.prior(), strength=1.0), or ELBO(...)
        >>> objective(loss, model, data_size=100) is loss
        True
    """

    def __call__(self, loss: Tensor, model: Variational, *, data_size: int) -> Tensor:
        return loss

    def fingerprint(self) -> str:
        return "ExpectedLoss"


@dataclass(frozen=True, eq=False)
class ELBO(Objective):
    """The negative evidence lower bound: mean loss + weight KL(model || prior).

    With a negative log-likelihood as loss and weight 1/N this is the negative ELBO divided by N,
    where N is the number of training examples; other weights temper the posterior. Covariances must
    be nonsingular, which excludes the default, `Relative`, and `LowRank`: use `Diagonal`,
    `LowRankPlusDiagonal` or `FullRank`.

    Args:
        prior: The prior, from `model.prior()`.
        weight: Weight of the KL divergence: "1/N" or a number.

    Raises:
        ValueError: If the KL divergence from this prior would be infinite.

    Examples:
        >>> import tacit, torch
        >>> from torch.nn import functional as F
        >>> model = tacit.variational(torch.nn.Linear(3, 2), {"": tacit.Diagonal()})
        >>> objective = tacit.ELBO(model.prior())
        >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
        >>> loss = objective(F.cross_entropy(model(x), y), model, data_size=len(x))
        >>> loss.backward()
    """

    prior: Prior
    weight: float | Literal["1/N"] = "1/N"

    def __post_init__(self) -> None:
        _check_prior(self.prior)
        for distribution in self.prior.distributions.values():
            distribution_kl(distribution, distribution)  # raises if it would be infinite
        if isinstance(self.weight, str) and self.weight != "1/N":
            raise ValueError(f"ELBO(weight): expected '1/N' or a number, received {self.weight!r}.")
        if self.weight != "1/N":
            # A NumPy number would turn a product with a tensor into an array.
            weight = checks.positive_number("ELBO(weight)", self.weight)
            object.__setattr__(self, "weight", weight)

    def __call__(self, loss: Tensor, model: Variational, *, data_size: int) -> Tensor:
        weight = self.weight
        if weight == "1/N":
            weight = 1 / checks.positive_integer("data_size", data_size)
        return loss + weight * _sum(kl(model, self.prior))

    def fingerprint(self) -> str:
        return f"ELBO(weight={self.weight}, prior {self.prior.fingerprint()})"


@dataclass(frozen=True, eq=False)
class GVI(Objective):
    """Generalized variational inference: mean loss + strength/N W2^2(model, prior).

    For linear models, SGD on the expected loss alone converges to the limit of this objective's
    minimiser as the strength vanishes, by implicit bias (Theorem 1).

    Args:
        prior: The prior, from `model.prior()`.
        strength: lambda in sum_n E[loss_n] + lambda W2^2.

    Examples:
        >>> import tacit, torch
        >>> from torch.nn import functional as F
        >>> model = tacit.variational(torch.nn.Linear(3, 2), {"": tacit.LowRank(4)})
        >>> objective = tacit.GVI(model.prior(), strength=0.1)
        >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
        >>> loss = objective(F.cross_entropy(model(x), y), model, data_size=len(x))
        >>> loss.backward()
    """

    prior: Prior
    strength: float

    def __post_init__(self) -> None:
        _check_prior(self.prior)
        strength = checks.positive_number("GVI(strength)", self.strength)
        object.__setattr__(self, "strength", strength)

    def __call__(self, loss: Tensor, model: Variational, *, data_size: int) -> Tensor:
        weight = self.strength / checks.positive_integer("data_size", data_size)
        return loss + weight * _sum(squared_wasserstein(model, self.prior))

    def fingerprint(self) -> str:
        return f"GVI(strength={self.strength}, prior {self.prior.fingerprint()})"


def _check_prior(prior: Prior) -> None:
    if not isinstance(prior, Prior):
        raise TypeError(f"prior: expected model.prior(), received {type(prior).__name__}.")


def _sum(by_layer: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(by_layer.values())).sum()
