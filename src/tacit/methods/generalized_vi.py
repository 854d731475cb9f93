"""Random weights with an explicit regularizer: the 2-Wasserstein distance to the prior."""

from __future__ import annotations

from dataclasses import dataclass

from tacit._support import checks
from tacit.methods.base import Method, check_counts
from tacit.methods.learned import Sampled
from tacit.methods.task import Task
from tacit.training.objective import GVI
from tacit.weights import Where


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
        checks.positive_number("GeneralizedVI(strength)", self.strength)
        check_counts(self, "rank", "samples", "draws")

    def learn(self, task: Task) -> Sampled:
        model = task.variational(self.where, self.rank)
        objective = GVI(model.prior(), self.strength)
        task.fit(model, samples=self.samples, draws=self.draws, objective=objective)
        return Sampled(model)
