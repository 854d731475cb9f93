"""The paper's method and its baselines behind one interface, so that they are interchangeable."""

from tacit.methods.base import Method
from tacit.methods.deep_ensemble import DeepEnsemble
from tacit.methods.generalized_vi import GeneralizedVI
from tacit.methods.implicit_bias_vi import ImplicitBiasVI
from tacit.methods.laplace import Laplace
from tacit.methods.learned import Members, Plain, Sampled
from tacit.methods.mc_dropout import MCDropout
from tacit.methods.mean_field_vi import MeanFieldVI
from tacit.methods.saving import load, save
from tacit.methods.standard import Standard
from tacit.methods.swag import SWAG
from tacit.methods.task import Task
from tacit.methods.temperature_scaling import TemperatureScaling

__all__ = [
    "SWAG",
    "DeepEnsemble",
    "GeneralizedVI",
    "ImplicitBiasVI",
    "Laplace",
    "MCDropout",
    "MeanFieldVI",
    "Members",
    "Method",
    "Plain",
    "Sampled",
    "Standard",
    "Task",
    "TemperatureScaling",
    "load",
    "save",
]
