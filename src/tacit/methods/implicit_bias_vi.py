"""Random weights trained on the expected loss alone: the paper's method."""

from __future__ import annotations

from dataclasses import dataclass

from tacit import _checks
from tacit.calibration import calibrate
from tacit.likelihood import Bernoulli, Categorical
from tacit.methods.base import Method, Task
from tacit.methods.predictors import Sampled
from tacit.selection import Where
from tacit.variational import variational


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
        for name in ("rank", "samples", "draws"):
            if getattr(self, name) is not None:
                _checks.positive_integer(f"ImplicitBiasVI({name})", getattr(self, name))

    def learn(self, task: Task) -> Sampled:
        model = variational(
            task.net(), self.where, rank=self.rank, likelihood=task.likelihood,
            parametrization=task.parametrization,
        )  # fmt: skip
        task.fit(model, samples=self.samples, draws=self.draws)
        predictor = Sampled(model)
        tunable = isinstance(task.likelihood, Categorical | Bernoulli)
        if self.calibrated and tunable and task.validation is not None:
            calibrate(predictor, task.validation)
        return predictor
