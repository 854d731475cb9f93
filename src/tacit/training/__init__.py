"""Training: the loop, its history and its checkpoints."""

from tacit.training.fit import TrainingDivergedError, fit
from tacit.training.history import History

__all__ = ["History", "TrainingDivergedError", "fit"]
