"""A plain network: the baseline of all methods."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.methods.base import Method
from tacit.methods.learned import Plain
from tacit.methods.task import Task


@dataclass(frozen=True)
class Standard(Method):
    """A plain network, trained on the negative log-likelihood."""

    def learn(self, task: Task) -> Plain:
        return Plain(task.trained(), task.likelihood)
