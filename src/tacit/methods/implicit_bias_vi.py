"""Random weights trained on the expected loss alone: the paper's method."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.inference.calibration import calibrate
from tacit.likelihood import DiscreteLikelihood
from tacit.methods.base import Method, check_counts
from tacit.methods.learned import Sampled
from tacit.methods.task import Task
from tacit.weights import Where


@dataclass(frozen=True)
class ImplicitBiasVI(Method):
    """A distribution over weights that starts at the prior and minimises the expected loss.

    With a temperature from the validation data, where there are any: the paper does so too.

    Args:
        where: Which layers are random, and how: as `tacit.variational` takes it; all of them, low
            rank, if left out. `tacit.first_and_last` is the paper's recipe.
        rank: Of the layers that `where` gives no covariance.
        samples: Functions drawn in a step, each for the whole batch.
        draws: Draws of the weights in a step, each for a part of the batch; as `tacit.fit` has it
            if left out, 8 for most networks. The paper's is 1.
        calibrated: Whether to set a temperature.
    """

    where: Where = None
    rank: int | None = None
    samples: int = 1
    draws: int | None = None
    calibrated: bool = True

    def __post_init__(self) -> None:
        check_counts(self, "rank", "samples", "draws")

    def learn(self, task: Task) -> Sampled:
        model = task.variational(self.where, self.rank)
        task.fit(model, samples=self.samples, draws=self.draws)
        predictor = Sampled(model)
        tunable = isinstance(task.likelihood, DiscreteLikelihood)
        if self.calibrated and tunable and task.validation is not None:
            calibrate(predictor, task.validation)
        return predictor
