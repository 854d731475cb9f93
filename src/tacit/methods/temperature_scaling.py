"""Temperature scaling of a trained plain network (Guo et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.inference.calibration import calibrate
from tacit.likelihood import DiscreteLikelihood
from tacit.methods.base import Method
from tacit.methods.learned import Plain
from tacit.methods.task import Task


@dataclass(frozen=True)
class TemperatureScaling(Method):
    """A plain network with a temperature fitted to validation data by `tacit.calibrate`.

    Only the confidence changes: the accuracy is exactly that of `Standard`.

    Examples:
        >>> import tacit
        >>> train, validation, test = tacit.data.digits()
        >>> make_net = lambda: tacit.models.MLP(64, [32], 10)
        >>> predictor = TemperatureScaling().fit(make_net, train, validation, epochs=5, lr=0.1)
        >>> bool(predictor.likelihood.temperature < 1)  # it was not confident enough
        True
        >>> tacit.evaluate(predictor, test)["nll"] < 0.5
        True
    """

    @property
    def needs_validation(self) -> bool:
        return True

    def learn(self, task: Task) -> Plain:
        if not isinstance(task.likelihood, DiscreteLikelihood):
            raise TypeError(
                "TemperatureScaling: expected a Categorical or Bernoulli likelihood, received "
                f"{task.likelihood!r}."
            )
        predictor = Plain(task.trained(), task.likelihood)
        calibrate(predictor, task.validation)
        return predictor
