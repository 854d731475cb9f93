"""The methods by the names that the command line and reports use."""

from __future__ import annotations

from tacit.methods.base import Method
from tacit.methods.deep_ensemble import DeepEnsemble
from tacit.methods.generalized_vi import GeneralizedVI
from tacit.methods.implicit_bias_vi import ImplicitBiasVI
from tacit.methods.laplace import Laplace
from tacit.methods.mc_dropout import MCDropout
from tacit.methods.mean_field_vi import MeanFieldVI
from tacit.methods.standard import Standard
from tacit.methods.swag import SWAG
from tacit.methods.temperature_scaling import TemperatureScaling
from tacit.weights import first_and_last

METHODS: dict[str, Method] = {
    "standard": Standard(),
    "temperature_scaling": TemperatureScaling(),
    "laplace_grid": Laplace("grid"),
    "laplace_marglik": Laplace("marglik"),
    "mean_field_vi": MeanFieldVI(samples=1, draws=8),
    "mc_dropout": MCDropout(),
    "swag": SWAG(),
    "deep_ensemble": DeepEnsemble(5),
    "implicit_bias_vi": ImplicitBiasVI(),
    "implicit_bias_vi_paper": ImplicitBiasVI(first_and_last, draws=1, averaging="log_probs"),
    "generalized_vi": GeneralizedVI(1.0),
}
"""Methods by their names on the command line and in reports."""
