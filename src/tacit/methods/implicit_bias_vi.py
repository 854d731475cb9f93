"""Variational inference through the implicit bias of training: the paper's method."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.inference.calibration import calibrate
from tacit.likelihood import DiscreteLikelihood
from tacit.likelihood.predictive import Averaging, check_averaging
from tacit.methods.base import Method, check_counts
from tacit.methods.learned import Sampled
from tacit.methods.task import Task
from tacit.weights import Where


@dataclass(frozen=True)
class ImplicitBiasVI(Method):
    """Minimises the expected loss over weight distributions, initialized at the prior.

    Given validation data and a discrete likelihood, it also fits a temperature, as in the paper.

    Args:
        where: Random layers and their covariances, as in `tacit.variational`; by default
            `tacit.relative_noise`. `tacit.first_and_last` is the paper's choice.
        rank: Rank of low-rank covariances, for a list in `where`, or in all layers.
        samples: Functions drawn per step, each applied to the whole batch.
        draws: Weight draws per step, each applied to a part of the batch; the default of
            `tacit.fit` if None. The paper uses 1.
        averaging: How predictions average functions; the paper averages "log_probs".
        calibrated: Whether to set a temperature on the validation data.

    Examples:
        >>> import tacit
        >>> train, validation, test = tacit.data.digits()
        >>> make_net = lambda: tacit.models.MLP(64, [32], 10)
        >>> predictor = ImplicitBiasVI().fit(make_net, train, validation, epochs=5, lr=0.1)
        >>> tacit.predict(predictor, test[0], samples=8)
        ClassPredictive(797 examples, 10 classes, 8 functions)
        >>> as_in_the_paper = ImplicitBiasVI(tacit.first_and_last, draws=1, averaging="log_probs")
    """

    where: Where = None
    rank: int | None = None
    samples: int = 1
    draws: int | None = None
    averaging: Averaging = "probs"
    calibrated: bool = True

    def __post_init__(self) -> None:
        check_counts(self, "rank", "samples", "draws")
        check_averaging(self.averaging)

    def learn(self, task: Task) -> Sampled:
        task.average(self.averaging)
        model = task.variational(self.where, self.rank)
        task.fit(model, samples=self.samples, draws=self.draws)
        predictor = Sampled(model)
        tunable = isinstance(task.likelihood, DiscreteLikelihood)
        if self.calibrated and tunable and task.validation is not None:
            calibrate(predictor, task.validation)
        return predictor
