"""Ensembles of independently trained networks (Lakshminarayanan et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from tacit._support import checks
from tacit.methods.base import Method
from tacit.methods.learned import Members
from tacit.methods.task import Task


@dataclass(frozen=True)
class DeepEnsemble(Method):
    """Networks that differ in initialization and data order.

    Their probabilities are averaged. Training costs `members` times that of one network.

    Args:
        members: Number of networks.

    Examples:
        >>> import tacit
        >>> train, _, test = tacit.data.digits()
        >>> make_net = lambda: tacit.models.MLP(64, [32], 10)
        >>> predictor = DeepEnsemble(3).fit(make_net, train, epochs=5, lr=0.1)
        >>> prediction = tacit.predict(predictor, test[0])
        >>> prediction.logits.shape  # of 3 functions
        torch.Size([3, 797, 10])
        >>> bool(prediction.mutual_information.mean() > 0.01)  # they disagree
        True
    """

    members: int = 5

    def __post_init__(self) -> None:
        checks.positive_integer("DeepEnsemble(members)", self.members)

    def learn(self, task: Task) -> Members:
        if task.net(0) is task.net(1):
            raise ValueError(
                "make_net: expected a new network on each call; it returned the same network twice."
            )
        nets = [task.trained(i) for i in range(self.members)]
        task.average("probs")
        return Members(nets, task.likelihood)
