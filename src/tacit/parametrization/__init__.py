"""How weights start and how learning rates scale with width: the prior and the inductive bias."""

from tacit.parametrization.base import Parametrization, optimizer_family
from tacit.parametrization.groups import Entry, group
from tacit.parametrization.maximal_update import MaximalUpdate
from tacit.parametrization.neural_tangent import NeuralTangent
from tacit.parametrization.standard import Standard
from tacit.parametrization.tensors import Fans, Kind, Role, Tensor, fans_of

__all__ = [
    "Entry",
    "Fans",
    "Kind",
    "MaximalUpdate",
    "NeuralTangent",
    "Parametrization",
    "Role",
    "Standard",
    "Tensor",
    "fans_of",
    "group",
    "optimizer_family",
]
