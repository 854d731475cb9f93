"""Initial scales and learning rates as functions of width: the prior and the inductive bias."""

from tacit.scaling.parametrization.base import Parametrization
from tacit.scaling.parametrization.maximal_update import MaximalUpdate
from tacit.scaling.parametrization.neural_tangent import NeuralTangent
from tacit.scaling.parametrization.roles import Fans, Kind, Role, ScaledParameter, fans_of
from tacit.scaling.parametrization.standard import Standard

__all__ = [
    "Fans",
    "Kind",
    "MaximalUpdate",
    "NeuralTangent",
    "Parametrization",
    "Role",
    "ScaledParameter",
    "Standard",
    "fans_of",
]
