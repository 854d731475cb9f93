"""A plain network whose confidence is set right afterwards (Guo et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.inference.calibration import calibrate
from tacit.methods.base import Method
from tacit.methods.learned import Plain
from tacit.methods.task import Task


@dataclass(frozen=True)
class TemperatureScaling(Method):
    """A plain network with a temperature from the validation data, as `tacit.calibrate` sets it.

    It changes confidence only: the accuracy is that of `Standard`, exactly.
    """

    @property
    def needs_validation(self) -> bool:
        return True

    def learn(self, task: Task) -> Plain:
        predictor = Plain(task.trained(), task.likelihood)
        calibrate(predictor, task.validation)
        return predictor
