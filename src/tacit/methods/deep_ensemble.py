"""Several networks from different beginnings (Lakshminarayanan et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from tacit._support import checks
from tacit.likelihood import DiscreteLikelihood
from tacit.methods.base import Method
from tacit.methods.learned import Members
from tacit.methods.task import Task


@dataclass(frozen=True)
class DeepEnsemble(Method):
    """Networks that differ in where they start and in the order of the data.

    Probabilities are averaged. It costs as many trainings as there are members.

    Args:
        members: How many.
    """

    members: int = 5

    def __post_init__(self) -> None:
        checks.positive_integer("DeepEnsemble(members)", self.members)

    def learn(self, task: Task) -> Members:
        if task.net(0) is task.net(1):
            raise ValueError(
                "make_net: it returned the same network twice; make a new one each time."
            )
        nets = [task.trained(i) for i in range(self.members)]
        if isinstance(task.likelihood, DiscreteLikelihood):
            task.likelihood.averaging = "probs"
        return Members(nets, task.likelihood)
