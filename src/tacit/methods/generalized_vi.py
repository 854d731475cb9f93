"""Random weights with an explicit regularizer: the 2-Wasserstein distance to the prior."""

from __future__ import annotations

from dataclasses import dataclass

from tacit import _checks
from tacit.methods.base import Method, Task
from tacit.methods.predictors import Sampled
from tacit.objective import GVI
from tacit.selection import Where
from tacit.variational import variational


@dataclass(frozen=True)
class GeneralizedVI(Method):
    """The expected loss plus strength / N times the squared distance to where it started.

    Args:
        strength: Of the regularizer.
        where: Which layers are random, and how: as `tacit.variational` takes it; all of them, low
            rank, if left out.
        rank: Of the layers that `where` gives no covariance.
        samples: Functions drawn in a step, each for the whole batch.
        draws: Draws of the weights in a step, each for a part of the batch; as `tacit.fit` has it
            if left out.
    """

    strength: float = 1.0
    where: Where = None
    rank: int | None = None
    samples: int = 1
    draws: int | None = None

    def __post_init__(self) -> None:
        _checks.positive_number("GeneralizedVI(strength)", self.strength)
        for name in ("rank", "samples", "draws"):
            if getattr(self, name) is not None:
                _checks.positive_integer(f"GeneralizedVI({name})", getattr(self, name))

    def learn(self, task: Task) -> Sampled:
        model = variational(
            task.net(), self.where, rank=self.rank, likelihood=task.likelihood,
            parametrization=task.parametrization,
        )  # fmt: skip
        objective = GVI(model.prior(), self.strength)
        task.fit(model, samples=self.samples, draws=self.draws, objective=objective)
        return Sampled(model)
