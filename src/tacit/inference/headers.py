"""File headers: models, networks and likelihoods as JSON-serialisable data.

Headers of files that are read have passed `header_checks`, which adds the shapes of the file's
tensors under the name SHAPES.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from tacit._support import files, schema
from tacit._support.names import join
from tacit.calling import Variational, variational
from tacit.inference.header_checks import (
    COVARIANCES,
    LIKELIHOODS,
    NOISES,
    SHAPES,
)
from tacit.likelihood import (
    Bernoulli,
    Categorical,
    ContinuousLikelihood,
    DiscreteLikelihood,
    HeteroscedasticStudentT,
    HomoscedasticLikelihood,
    Likelihood,
    StudentT,
)
from tacit.models import MODELS, Rebuildable, Standardise
from tacit.scaling import Parametrization
from tacit.weights.adapter import add_adapters, describe_adapters
from tacit.weights.covariance import Covariance
from tacit.weights.layers import RandomLayer, layers_of
from tacit.weights.noise import Noise
from tacit.weights.selection import select_layers


def describe_model(model: Variational) -> dict[str, Any]:
    """Return the settings needed to rebuild a model, JSON-serialisable, without tensors."""
    return {
        "network": describe_network(model.module),
        "adapters": describe_adapters(model.module),
        "layers": {
            _selector(model.module, layer): _settings(layer.covariance, COVARIANCES)
            for layer in model.layers
        },
        "noise": _settings(model.noise, NOISES),
        "draws": model.draws,
        "likelihood": describe_likelihood(model.likelihood),
        "preprocessing": model.preprocessing,
        "inputs": 0 if model.inputs is None else len(model.inputs.mean),
    }


def _selector(module: nn.Module, layer: RandomLayer) -> str:
    """Return a name that selects all random parameters of a layer."""
    own = dict(module.get_submodule(layer.name).named_parameters(recurse=False))
    if layer.label == layer.name or len(layer.shapes) == 1:
        return layer.label
    if own.keys() == layer.shapes.keys():  # all were chosen by a glob of parameters
        return layer.name
    raise TypeError(
        f"save: {', '.join(layer.parameters.values())} were chosen jointly by a glob, which a file "
        "can't describe. Choose the whole layer, or each of its parameters by name."
    )


def build_model(
    given: Mapping[str, Any],
    net: nn.Module,
    path: str | Path,
    parametrization: Parametrization | None = None,
) -> Variational:
    """Return a variational model of a network, with the settings of `describe_model`.

    Raises:
        ValueError: If the settings don't fit the network, or the model doesn't fit the tensors of
            the file.
    """
    where = {label: _build(each, COVARIANCES) for label, each in given["layers"].items()}
    noise, likelihood = _build(given["noise"], NOISES), build_likelihood(given["likelihood"])
    try:
        if given["adapters"] is not None:
            add_adapters(net, **given["adapters"])
        if SHAPES in given:
            _check_sizes(given, net, where, path)
        model = variational(
            net, where, noise=noise, likelihood=likelihood, draws=given["draws"],
            parametrization=parametrization,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"load: {path} doesn't fit the network passed (expected the plain network): {error}"
        ) from error
    model.preprocessing = given["preprocessing"]
    if columns := given["inputs"]:
        model.inputs = Standardise(torch.zeros(columns), torch.ones(columns))
    return model


def _check_sizes(
    given: Mapping[str, Any], net: nn.Module, where: Mapping[str, Covariance], path: object
) -> None:
    """Raise ValueError unless network and factors have the shapes in the file.

    Factors can be far larger than the network, so they are compared before they are allocated.
    """
    layers = select_layers(net, where)
    known = {*layers_of(net), *(name for name, _ in net.named_parameters(remove_duplicate=False))}
    if unknown := [label for label in where if label not in known]:
        raise ValueError(f"where: no layer matches {unknown[0]!r}.")
    absent = frozen(net) if given.get("frozen") else {}
    state = {name: tensor for name, tensor in net.state_dict().items() if name not in absent}
    own = files.shapes_of({join("module", name): tensor for name, tensor in state.items()})
    for layer in layers:
        for name, factor in layer.factors.items():
            own[join("factors", join(layer.name, name))] = tuple(factor.shape)
    kept = ("likelihood.", "inputs.")
    rest = {name: shape for name, shape in given[SHAPES].items() if not name.startswith(kept)}
    files.check_shapes(path, own, rest)


def frozen(module: nn.Module) -> dict[str, Tensor]:
    """Return the frozen parameters of a module, by all their names."""
    named = module.named_parameters(remove_duplicate=False)
    return {name: value for name, value in named if not value.requires_grad}


def describe_network(module: nn.Module) -> dict[str, Any]:
    """Return the class of a network, with its arguments if it is one of `tacit.models`."""
    name = type(module).__name__
    if isinstance(module, Rebuildable) and MODELS.get(name) is type(module):
        return {"kind": name, "arguments": module.arguments}
    return {"kind": name}


def build_network(given: Mapping[str, Any], path: str | Path) -> nn.Module:
    """Return the network of `tacit.models` that `describe_network` described.

    It is first built without memory, on the meta device, and compared with the tensors in the file.
    Its weights come from the file alone: `pretrained` is never passed on.

    Raises:
        ValueError: If it is not one of `tacit.models`, or doesn't fit the file.
    """
    if given["kind"] not in MODELS or "arguments" not in given:
        raise ValueError(
            f"load: {path} holds a {given['kind']}, which is not in tacit.models; pass the "
            "network, tacit.load(path, net), or a function that makes it, "
            "tacit.methods.load(path, make_net)."
        )
    make = MODELS[given["kind"]]
    arguments = {name: v for name, v in given["arguments"].items() if name != "pretrained"}
    _check_arguments(path, arguments, given[SHAPES])
    try:
        with torch.device("meta"):
            outline = make(**arguments)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"load: {path} describes no {given['kind']}: {error}") from error
    files.check_shapes(path, files.shapes_of(outline.state_dict()), given[SHAPES])
    return make(**arguments)


def _check_arguments(path: object, arguments: Mapping[str, Any], shapes: files.Shapes) -> None:
    """Raise ValueError if a network has more layers or entries than the file.

    Building a network of a billion layers would not finish, even on the meta device.
    """
    size = schema.integer(1, sum(math.prod(shape) for shape in shapes.values()))
    depth = schema.integer(1, len(shapes))  # every layer has tensors
    for name, value in arguments.items():
        if isinstance(value, list):
            files.check_header(path, value, schema.list_of(size))
            files.check_header(path, {f"length of {name}": len(value) + 1}, schema.table_of(depth))
        elif isinstance(value, int):
            rule = depth if name == "depth" else size
            files.check_header(path, {name: value}, schema.table_of(rule))


def _own_type_error(given: object, known: tuple[type, ...]) -> TypeError:
    names = ", ".join(kind.__name__ for kind in known)
    return TypeError(
        f"save: expected one of {names}; {given} can't be described in a file. Write "
        "model.state_dict() with safetensors.torch.save_file, and load it into a model that your "
        "code builds."
    )


def _settings(given: Covariance | Noise, known: tuple[type, ...]) -> dict[str, Any]:
    if type(given) not in known:
        raise _own_type_error(given, known)
    fields = dataclasses.asdict(given)  # type: ignore[call-overload]
    return {"kind": type(given).__name__, **fields}


def _build(given: Mapping[str, Any], known: tuple[type, ...]) -> Any:
    kinds = {kind.__name__: kind for kind in known}
    if given["kind"] not in kinds:
        raise ValueError(f"load: expected one of {', '.join(kinds)}; received {given['kind']!r}.")
    kind, hints = kinds[given["kind"]], get_type_hints(kinds[given["kind"]])
    fields = {
        name: float(value) if hints.get(name) is float else value
        for name, value in given.items()
        if name != "kind"
    }
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"load: {given['kind']} can't be built: {error}") from error


def describe_likelihood(likelihood: Likelihood | None) -> dict[str, Any] | None:
    """Return the settings needed to rebuild a likelihood, JSON-serialisable."""
    kind = type(likelihood)
    if likelihood is None:
        return None
    if kind not in LIKELIHOODS:
        raise _own_type_error(likelihood, LIKELIHOODS)
    settings: dict[str, Any] = {"kind": kind.__name__}
    if isinstance(likelihood, Categorical):
        weights = likelihood.class_weights
        settings["class_names"] = likelihood.class_names
        settings["class_weights"] = None if weights is None else weights.tolist()
        settings["label_smoothing"] = likelihood.label_smoothing
        settings["class_dim"] = likelihood.class_dim
        settings["ignore_index"] = likelihood.ignore_index
    if isinstance(likelihood, Bernoulli):
        settings["names"] = likelihood.names
    if isinstance(likelihood, DiscreteLikelihood):
        settings["averaging"] = likelihood.averaging
        settings["scope"] = likelihood.scope
    if isinstance(likelihood, Categorical):
        settings["per_class"] = likelihood.temperature.numel() if likelihood.temperature.ndim else 0
        settings["offsets"] = likelihood.offset.numel() if likelihood.offset.ndim else 0
    if isinstance(likelihood, ContinuousLikelihood):
        settings["sizes"], settings["flat"] = list(likelihood.sizes), likelihood.flat
    if isinstance(likelihood, HomoscedasticLikelihood):
        settings["learn"], settings["scales"] = likelihood.learn, list(likelihood.log_scale.shape)
    if isinstance(likelihood, StudentT | HeteroscedasticStudentT):
        settings["df"] = likelihood.df
    settings["knots"] = None if likelihood.knots is None else list(likelihood.knots.shape)
    return settings


def build_likelihood(given: Mapping[str, Any] | None) -> Likelihood | None:
    """Return a likelihood with the settings of `describe_likelihood`."""
    if given is None:
        return None
    calibrated = ("scope", "per_class", "offsets", "sizes", "flat", "scales", "knots")
    settings = {name: value for name, value in given.items() if name not in calibrated}
    likelihood: Likelihood = _build(settings, LIKELIHOODS)
    if isinstance(likelihood, DiscreteLikelihood):
        likelihood.scope = given["scope"]
    if isinstance(likelihood, Categorical):
        # Values come from the file's tensors; these have their shapes.
        temperature = torch.ones(given["per_class"] or ())
        offset = torch.zeros(given["offsets"] or ())
        likelihood.set_temperature(temperature, given["scope"], offset)
    if isinstance(likelihood, ContinuousLikelihood):
        sizes = given["sizes"]
        likelihood.set_units(torch.zeros(sizes), torch.ones(sizes), flat=given["flat"])
    if isinstance(likelihood, HomoscedasticLikelihood):
        likelihood.log_scale.data = torch.zeros(given["scales"])
    if given["knots"] is not None:
        likelihood.knots = torch.zeros(given["knots"], dtype=torch.float64)
    return likelihood
