"""Networks that know how they were made, so that a saved model can rebuild itself."""

from tacit.models.base import Rebuildable
from tacit.models.lenet import LeNet5
from tacit.models.mlp import MLP

MODELS: dict[str, type[Rebuildable]] = {"MLP": MLP, "LeNet5": LeNet5}

__all__ = ["MLP", "MODELS", "LeNet5", "Rebuildable"]
