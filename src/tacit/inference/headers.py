"""File headers: models, networks and likelihoods as JSON-serialisable data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.calling import Variational, variational
from tacit.likelihood import (
    Bernoulli,
    Categorical,
    DiscreteLikelihood,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
)
from tacit.models import MODELS, Rebuildable
from tacit.scaling import Parametrization
from tacit.weights.covariance import (
    Covariance,
    Diagonal,
    FullRank,
    Kronecker,
    LowRank,
    LowRankPlusDiagonal,
    PositiveDiagonal,
)
from tacit.weights.noise import Gaussian as GaussianNoise
from tacit.weights.noise import Laplace, Noise, StudentT

COVARIANCES = (LowRank, FullRank, Diagonal, PositiveDiagonal, Kronecker, LowRankPlusDiagonal)
NOISES = (GaussianNoise, Laplace, StudentT)
LIKELIHOODS = (Categorical, Bernoulli, Gaussian, HeteroscedasticGaussian)


def describe_model(model: Variational) -> dict[str, Any]:
    """Return the settings needed to rebuild a model, JSON-serialisable, without tensors."""
    return {
        "network": describe_network(model.module),
        "layers": {layer.label: _settings(layer.covariance, COVARIANCES) for layer in model.layers},
        "noise": _settings(model.noise, NOISES),
        "draws": model.draws,
        "likelihood": describe_likelihood(model.likelihood),
        "preprocessing": model.preprocessing,
    }


def build_model(
    given: Mapping[str, Any],
    net: nn.Module,
    path: str | Path,
    parametrization: Parametrization | None = None,
) -> Variational:
    """Return a variational model of a network, with the settings of `describe_model`."""
    where = {label: _build(each, COVARIANCES) for label, each in given["layers"].items()}
    noise, likelihood = _build(given["noise"], NOISES), build_likelihood(given["likelihood"])
    try:
        model = variational(
            net, where, noise=noise, likelihood=likelihood, draws=given["draws"],
            parametrization=parametrization,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"load: {path} doesn't fit the network passed (expected the plain network): {error}"
        ) from error
    model.preprocessing = given["preprocessing"]
    return model


def describe_network(module: nn.Module) -> dict[str, Any]:
    """Return the class of a network, with its arguments if it is one of `tacit.models`."""
    name = type(module).__name__
    if isinstance(module, Rebuildable) and MODELS.get(name) is type(module):
        return {"kind": name, "arguments": module.arguments}
    return {"kind": name}


def build_network(given: Mapping[str, Any], path: str | Path) -> nn.Module:
    """Return the network of `tacit.models` that `describe_network` described."""
    if given["kind"] not in MODELS or "arguments" not in given:
        raise ValueError(
            f"load: {path} holds a {given['kind']}, which is not in tacit.models; pass the "
            "network, tacit.load(path, net), or a function that makes it, "
            "tacit.methods.load(path, make_net)."
        )
    return MODELS[given["kind"]](**given["arguments"])


def _settings(given: Covariance | Noise, known: tuple[type, ...]) -> dict[str, Any]:
    if type(given) not in known:
        names = ", ".join(kind.__name__ for kind in known)
        raise TypeError(f"save: expected one of {names}; {given} can't be described in a file.")
    fields = dataclasses.asdict(given)  # type: ignore[call-overload]
    return {"kind": type(given).__name__, **fields}


def _build(given: Mapping[str, Any], known: tuple[type, ...]) -> Any:
    kinds = {kind.__name__: kind for kind in known}
    if given["kind"] not in kinds:
        raise ValueError(f"load: expected one of {', '.join(kinds)}; received {given['kind']!r}.")
    return kinds[given["kind"]](**{name: v for name, v in given.items() if name != "kind"})


def describe_likelihood(likelihood: Likelihood | None) -> dict[str, Any] | None:
    """Return the settings needed to rebuild a likelihood, JSON-serialisable."""
    kind = type(likelihood)
    if likelihood is None:
        return None
    if kind not in LIKELIHOODS:
        raise TypeError(f"save: {likelihood} can't be described in a file.")
    settings: dict[str, Any] = {"kind": kind.__name__}
    if isinstance(likelihood, Categorical):
        weights = likelihood.class_weights
        settings["class_names"] = likelihood.class_names
        settings["class_weights"] = None if weights is None else weights.tolist()
        settings["label_smoothing"] = likelihood.label_smoothing
    if isinstance(likelihood, DiscreteLikelihood):
        settings["averaging"] = likelihood.averaging
        settings["scope"] = likelihood.scope
    if isinstance(likelihood, Categorical):
        settings["per_class"] = likelihood.temperature.numel() if likelihood.temperature.ndim else 0
    if isinstance(likelihood, Gaussian):
        settings["learn"] = likelihood.log_scale.requires_grad
    return settings


def build_likelihood(given: Mapping[str, Any] | None) -> Likelihood | None:
    """Return a likelihood with the settings of `describe_likelihood`."""
    if given is None:
        return None
    calibrated = ("kind", "scope", "per_class")
    settings = {name: value for name, value in given.items() if name not in calibrated}
    likelihood: Likelihood = _build({"kind": given["kind"], **settings}, LIKELIHOODS)
    if isinstance(likelihood, DiscreteLikelihood):
        likelihood.scope = given["scope"]
    if isinstance(likelihood, Categorical) and given["per_class"]:
        ones = torch.ones(given["per_class"])
        likelihood.set_temperature(ones, given["scope"], torch.zeros_like(ones))
    return likelihood
