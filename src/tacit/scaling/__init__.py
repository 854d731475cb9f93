"""Scaling with width: initial weights, learning rates, parameter groups."""

from tacit.scaling.description import describe
from tacit.scaling.grouping import GroupEntry, group_parameters, param_groups
from tacit.scaling.initialization import initialize
from tacit.scaling.optimizers import OPTIMIZERS, optimizer_family, optimizer_kind
from tacit.scaling.parametrization import MaximalUpdate, NeuralTangent, Parametrization, Standard
from tacit.scaling.parametrized import Parametrized, ScalingRow

__all__ = [
    "OPTIMIZERS",
    "GroupEntry",
    "MaximalUpdate",
    "NeuralTangent",
    "Parametrization",
    "Parametrized",
    "ScalingRow",
    "Standard",
    "describe",
    "group_parameters",
    "initialize",
    "optimizer_family",
    "optimizer_kind",
    "param_groups",
]
