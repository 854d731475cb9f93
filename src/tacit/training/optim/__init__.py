"""SGD with deferred updates of wide factors, and torch's optimizers by name."""

from tacit.training.optim.by_name import make_optimizer
from tacit.training.optim.sgd import SGD

__all__ = ["SGD", "make_optimizer"]
