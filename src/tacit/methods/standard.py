"""A plain network: the baseline of all methods."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.methods.base import Method
from tacit.methods.learned import Plain
from tacit.methods.task import Task


@dataclass(frozen=True)
class Standard(Method):
    """A plain network, trained on the negative log-likelihood.

    Examples:
        >>> import tacit
        >>> train, _, test = tacit.data.digits()
        >>> make_net = lambda: tacit.models.MLP(64, [32], 10)
        >>> predictor = Standard().fit(make_net, train, epochs=5, lr=0.1)
        >>> tacit.predict(predictor, test[0])
        ClassPredictive(797 examples, 10 classes, 1 functions)
    """

    def learn(self, task: Task) -> Plain:
        return Plain(task.trained(), task.likelihood)
