"""Training: the loop, its objectives, its history and its checkpoints."""

from tacit.training.divergence import TrainingDivergedError
from tacit.training.history import History
from tacit.training.loop import fit
from tacit.training.objective import ELBO, GVI, ExpectedLoss, Objective
from tacit.training.optim import SGD

__all__ = [
    "ELBO",
    "GVI",
    "SGD",
    "ExpectedLoss",
    "History",
    "Objective",
    "TrainingDivergedError",
    "fit",
]
