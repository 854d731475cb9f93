"""Variational inference with an explicit regularizer, the 2-Wasserstein distance to the prior."""

from __future__ import annotations

from dataclasses import dataclass

from tacit._support import checks
from tacit.likelihood.predictive import Averaging, check_averaging
from tacit.methods.base import Method, check_counts
from tacit.methods.learned import Sampled
from tacit.methods.task import Task
from tacit.training.objective import GVI
from tacit.weights import Where, every_layer


@dataclass(frozen=True)
class GeneralizedVI(Method):
    """Minimises the expected loss plus strength / N times the squared distance to the prior.

    Args:
        strength: Strength of the regularizer.
        where: Random layers and their covariances, as in `tacit.variational`; by default
            `tacit.every_layer`.
        rank: Rank of low-rank covariances, for a list in `where`, or in all layers.
        samples: Functions drawn per step, each applied to the whole batch.
        draws: Weight draws per step, each applied to a part of the batch; the default of
            `tacit.fit` if None.
        averaging: How predictions average functions; "log_probs" as in the paper.

    Examples:
        >>> import tacit
        >>> train, _, test = tacit.data.digits()
        >>> make_net = lambda: tacit.models.MLP(64, [32], 10)
        >>> predictor = GeneralizedVI(strength=0.1).fit(make_net, train, epochs=10, lr=0.1)
        >>> tacit.evaluate(predictor, test)["accuracy"] > 0.85
        True
    """

    strength: float = 1.0
    where: Where = None
    rank: int | None = None
    samples: int = 1
    draws: int | None = None
    averaging: Averaging = "log_probs"

    def __post_init__(self) -> None:
        checks.positive_number("GeneralizedVI(strength)", self.strength)
        check_counts(self, "rank", "samples", "draws")
        check_averaging(self.averaging)

    def learn(self, task: Task) -> Sampled:
        task.average(self.averaging)
        where = every_layer if self.where is None and self.rank is None else self.where
        model = task.variational(where, self.rank)
        objective = GVI(model.prior(), self.strength)
        task.fit(model, samples=self.samples, draws=self.draws, objective=objective)
        return Sampled(model)
