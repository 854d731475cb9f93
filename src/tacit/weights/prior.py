"""A frozen distribution over the random layers of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tacit.weights.distribution import Distribution


@dataclass(frozen=True, eq=False)
class Prior:
    """A frozen copy of a model's distribution; made by `Variational.prior`.

    Args:
        distributions: The distributions of the random layers, by the layers' labels.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(4, 2), {"": tacit.LowRank(3)})
        >>> prior = model.prior()  # before training
        >>> with torch.no_grad():
        ...     _ = model.module.bias.add_(1.0)  # training moves the means
        >>> round(tacit.divergence.squared_wasserstein(model, prior)[""].item(), 2)
        2.0
    """

    distributions: Mapping[str, Distribution]

    def __post_init__(self) -> None:
        frozen = {
            label: replace(
                distribution,
                mean={n: tensor.detach().clone() for n, tensor in distribution.mean.items()},
                factors={n: tensor.detach().clone() for n, tensor in distribution.factors.items()},
            )
            for label, distribution in self.distributions.items()
        }
        object.__setattr__(self, "distributions", frozen)

    def fingerprint(self) -> str:
        """Return a short hash of all means and factors, which identifies the prior."""
        digest = hashlib.sha256()
        for distribution in self.distributions.values():
            for tensor in (*distribution.mean.values(), *distribution.factors.values()):
                digest.update(tensor.detach().cpu().double().numpy().tobytes())
        return digest.hexdigest()[:12]
