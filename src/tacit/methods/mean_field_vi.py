"""Mean-field variational inference: independent Gaussian weights, trained on the ELBO."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from tacit._support import checks
from tacit.calling import Variational
from tacit.methods.base import Method, check_counts
from tacit.methods.learned import Sampled
from tacit.methods.task import Task
from tacit.training.objective import ELBO
from tacit.weights.covariance import PositiveDiagonal
from tacit.weights.prior import Prior


@dataclass(frozen=True)
class MeanFieldVI(Method):
    """A diagonal Gaussian over all weights, trained on the ELBO (Blundell et al., 2015).

    As in the paper: several samples per step, predictions from the mean of the logits, a prior of
    unit variance around the initial weights (around 0 in the first and last layer), and a KL
    divergence divided by the number of weights.

    Args:
        samples: Functions drawn per step, each applied to the whole batch.
        draws: Weight draws per step, each applied to a part of the batch; with samples=1 a step
            costs little more than one of a plain network.
        scale: Initial standard deviation of a weight, relative to that of its parametrization.
        weight: Weight of the KL divergence; one over the number of random weights by default.

    Examples:
        >>> import tacit
        >>> train, _, test = tacit.data.digits()
        >>> make_net = lambda: tacit.models.MLP(64, [32], 10)
        >>> predictor = MeanFieldVI(samples=1, draws=8).fit(make_net, train, epochs=10, lr=0.1)
        >>> tacit.evaluate(predictor, test)["accuracy"] > 0.85
        True
    """

    samples: int = 8
    draws: int = 1
    scale: float = 0.1
    weight: float | None = None

    def __post_init__(self) -> None:
        check_counts(self, "samples", "draws")
        checks.positive_number("MeanFieldVI(scale)", self.scale)

    def learn(self, task: Task) -> Sampled:
        model = task.variational({"*": PositiveDiagonal(self.scale)})
        prior = unit_prior(model)
        weights = sum(d.dense_mean().numel() for d in prior.distributions.values())
        objective = ELBO(prior, 1 / weights if self.weight is None else self.weight)
        task.fit(model, samples=self.samples, draws=self.draws, objective=objective)
        task.average("logits")
        return Sampled(model)


def unit_prior(model: Variational) -> Prior:
    """Return a unit-variance prior around the means; around 0 in the first and last layer."""
    layers = model.prior().distributions
    first, *_, last = [*layers, *layers]
    found = {}
    for label, layer in layers.items():
        factors = {name: torch.zeros_like(factor) for name, factor in layer.factors.items()}
        mean = layer.mean
        if label in (first, last):
            mean = {name: torch.zeros_like(tensor) for name, tensor in layer.mean.items()}
        found[label] = replace(layer, mean=mean, factors=factors)
    return Prior(found)
