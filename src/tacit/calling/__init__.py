"""Variational models: modules that are called with random weights."""

from tacit.calling.conversion import Ensemble, deterministic, ensemble
from tacit.calling.model import Variational
from tacit.calling.wrapping import variational

__all__ = ["Ensemble", "Variational", "deterministic", "ensemble", "variational"]
