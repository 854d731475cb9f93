"""Schemas of file headers, and checks of the sizes that they give against the file's tensors.

Files are untrusted. Everything is checked before anything of these sizes is allocated.
`check_model` and `check_predictor` add to the header the shapes of the tensors in the file, under
the name SHAPES.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from tacit._support import files, schema
from tacit._support.names import join
from tacit.inference.functions import Cost
from tacit.likelihood import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    HeteroscedasticStudentT,
    Laplace,
    StudentT,
)
from tacit.likelihood.discrete import Scope
from tacit.likelihood.predictive import Averaging, ProbabilityMap
from tacit.models import MODELS
from tacit.weights.covariance import (
    Diagonal,
    FullRank,
    Kronecker,
    LowRank,
    LowRankPlusDiagonal,
    PositiveDiagonal,
    RankOneSum,
    Relative,
)
from tacit.weights.noise import Gaussian as GaussianNoise
from tacit.weights.noise import Laplace as LaplaceNoise
from tacit.weights.noise import StudentT as StudentTNoise

COVARIANCES = (
    *(LowRank, FullRank, Diagonal, PositiveDiagonal, Kronecker, LowRankPlusDiagonal),
    *(RankOneSum, Relative),
)
NOISES = (GaussianNoise, LaplaceNoise, StudentTNoise)
LIKELIHOODS = (
    *(Categorical, Bernoulli, Gaussian, HeteroscedasticGaussian),
    *(HeteroscedasticStudentT, Laplace, StudentT),
)
SHAPES = "shapes"

COUNT = schema.integer(0, 2**31)
SHAPE = schema.list_of(schema.integer(1, 2**31))
DISCRETE: dict[str, schema.Rule] = {
    "kind": schema.text,
    "averaging": schema.one_of(*get_args(Averaging)),
    "scope": schema.one_of(*get_args(Scope)),
    "knots": schema.optional(SHAPE),
}
CONTINUOUS: dict[str, schema.Rule] = {
    "kind": schema.text,
    "sizes": SHAPE,
    "flat": schema.boolean,
    "knots": schema.optional(SHAPE),
}
HOMOSCEDASTIC = {**CONTINUOUS, "learn": schema.boolean, "scales": SHAPE}
DF = schema.integer(3, 1000)
LIKELIHOOD = schema.one_kind_of(
    {
        "Categorical": schema.record(
            {
                **DISCRETE,
                "class_names": schema.optional(schema.list_of(schema.text)),
                "class_weights": schema.optional(schema.list_of(schema.number(0))),
                "label_smoothing": schema.number(0, 1),
                "class_dim": schema.optional(schema.integer(-1, 1)),
                "ignore_index": schema.optional(schema.integer(-(2**53))),
                "per_class": COUNT,
                "offsets": COUNT,
            }
        ),
        "Bernoulli": schema.record(
            {**DISCRETE, "names": schema.optional(schema.list_of(schema.text))}
        ),
        "Gaussian": schema.record(HOMOSCEDASTIC),
        "HeteroscedasticGaussian": schema.record(CONTINUOUS),
        "HeteroscedasticStudentT": schema.record({**CONTINUOUS, "df": schema.optional(DF)}),
        "Laplace": schema.record(HOMOSCEDASTIC),
        "StudentT": schema.record({**HOMOSCEDASTIC, "df": DF}),
    }
)
NETWORK = schema.record(
    {"kind": schema.text}, optional={"arguments": schema.table_of(schema.anything)}
)


def _kinds(known: tuple[type, ...]) -> schema.Rule:
    return schema.one_kind_of(
        {kind.__name__: schema.dataclass_rule(kind, tagged=True) for kind in known}
    )


ADAPTERS = schema.record(
    {
        "rank": schema.integer(1, 2**31),
        "layers": schema.list_of(schema.text),
        "parameters": schema.list_of(schema.text),
    }
)
MODEL: dict[str, schema.Rule] = {
    "network": NETWORK,
    "adapters": schema.optional(ADAPTERS),
    "layers": schema.table_of(_kinds(COVARIANCES)),
    "noise": _kinds(NOISES),
    "draws": schema.word_or("each", schema.integer(1, 2**31)),
    "likelihood": schema.optional(LIKELIHOOD),
    "preprocessing": schema.optional(schema.table_of(schema.anything)),
    "inputs": COUNT,
}
FILE = {**MODEL, "frozen": schema.optional(schema.text), "version": schema.anything}
PREDICTOR = schema.record(
    {
        "kind": schema.text,
        "settings": schema.record({"network": NETWORK}, more=True),
        "likelihood": LIKELIHOOD,
        "cost": schema.optional(schema.dataclass_rule(Cost)),
        "version": schema.anything,
    },
    optional={"preprocessing": schema.table_of(schema.anything)},
)
SETTINGS: dict[str, dict[str, schema.Rule]] = {
    "Members": {"members": schema.integer(1, 2**31)},
    "Sampled": {"model": schema.record({**MODEL, "likelihood": LIKELIHOOD})},
    "LastLayer": {"last": schema.text, "probit": schema.boolean},
    "Dropped": {"rate": schema.number(0, 1)},
    "Path": {"scale": schema.number(0), "deviations": COUNT, "kept": COUNT},
}
"""Kind of predictor -> rules of its settings, except the network."""
PREFIXES = {"Members": "nets.0.", "Sampled": "model.module."}
"""Kind of predictor -> prefix of its network's tensor names; `net.` for all others."""


def check_model(path: Path, header: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Check the header of a model against its schema and the file's tensors.

    Raises:
        ValueError: If an entry is missing, unknown or of the wrong type, or doesn't fit the
            tensors.
    """
    files.check_header(path, header, schema.record(FILE))
    check_likelihood(path, header["likelihood"], header["network"], tensors)
    _check_inputs(path, header["inputs"], tensors)
    header[SHAPES] = files.shapes_of(tensors)
    header["network"][SHAPES] = files.shapes_of(tensors, "module.")


def check_predictor(path: Path, header: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Check the header of a predictor against its schema and the file's tensors.

    Raises:
        ValueError: If an entry is missing, unknown or of the wrong type, or doesn't fit the
            tensors.
    """
    files.check_header(path, header, PREDICTOR)
    kind, settings = header["kind"], header["settings"]
    rule = schema.record(SETTINGS.get(kind, {}), more=True)
    files.check_header(path, settings, rule)
    network = settings["network"]
    check_likelihood(path, header["likelihood"], network, tensors)
    network[SHAPES] = files.shapes_of(tensors, PREFIXES.get(kind, "net."))
    if kind == "Members":
        _check_number(path, "members", settings["members"], _groups(tensors, "nets"))
    if kind == "Sampled":
        check_likelihood(path, settings["model"]["likelihood"], network, tensors, "model.")
        _check_inputs(path, settings["model"]["inputs"], tensors, "model.")
        settings["model"][SHAPES] = files.shapes_of(tensors, "model.")
    if kind == "Path":
        _check_number(path, "kept", settings["kept"], _groups(tensors, "kept"))
        rows = tensors.get("deviations", torch.empty(0, 0)).shape[:1]
        _check_number(path, "deviations", settings["deviations"], sum(rows))
    if kind == "LastLayer":
        _check_last_layer(path, settings["last"], tensors)


def _check_inputs(
    path: object, columns: int, tensors: Mapping[str, Tensor], prefix: str = ""
) -> None:
    """Raise ValueError unless the file standardises as many columns as the header says."""
    names = (f"{prefix}inputs.mean", f"{prefix}inputs.std")
    own = dict.fromkeys(names, (columns,)) if columns else {}
    files.check_shapes(path, own, files.shapes_of({n: tensors[n] for n in names if n in tensors}))
    if columns:
        _check_values(path, names[0], tensors[names[0]])
        _check_values(path, names[1], tensors[names[1]])


def _check_last_layer(path: object, name: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the file has the eigenvectors of a linear layer, one side squared."""
    layer, found = join("net", name), files.shapes_of(tensors)
    outputs, *inputs = found.get(join(layer, "weight"), (0, 0))
    n = sum(inputs) + (join(layer, "bias") in found)
    own = {"input_vectors": (n, n), "output_vectors": (outputs, outputs)}
    files.check_shapes(path, own, {side: found.get(side, ()) for side in own})


def _groups(tensors: Mapping[str, Tensor], first: str) -> int:
    """Return the number of distinct i in names `first.i.rest`."""
    return len({name.split(".")[1] for name in tensors if name.startswith(f"{first}.")})


def _check_number(path: object, name: str, given: int, found: int) -> None:
    if given != found:
        raise ValueError(f"{path} is damaged: {name} is {given} in the header; it holds {found}.")


def check_likelihood(
    path: object,
    given: Mapping[str, Any] | None,
    network: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    prefix: str = "",
) -> None:
    """Check the likelihood's sizes against each other and the network, and its tensors' values."""
    if given is None:
        return
    for name, tensor in tensors.items():
        if name.startswith(f"{prefix}likelihood."):
            _check_values(path, name, tensor)
    _check_knots(path, given["knots"], tensors, f"{prefix}likelihood.knots")
    if "sizes" in given:
        _check_units(path, given, tensors, f"{prefix}likelihood.")
    if given["kind"] == "Bernoulli" and given["names"] is not None:
        _check_same(path, "targets", {"names": len(given["names"])}, network)
    if given["kind"] != "Categorical":
        return
    for name, entry in (("temperature", "per_class"), ("offset", "offsets")):
        tensor = tensors.get(f"{prefix}likelihood.{name}", torch.empty(()))
        _check_number(path, entry, given[entry], tensor.shape[0] if tensor.ndim else 0)
    lists = {entry: given[entry] for entry in ("class_names", "class_weights")}
    sizes = {entry: len(values) for entry, values in lists.items() if values is not None}
    sizes |= {entry: given[entry] for entry in ("per_class", "offsets") if given[entry]}
    _check_same(path, "classes", sizes, network)


def _check_same(path: object, what: str, sizes: dict[str, Any], network: Mapping[str, Any]) -> None:
    """Raise ValueError unless sizes agree with each other and the network's number of outputs."""
    arguments = network.get("arguments", {}) if network["kind"] in MODELS else {}
    sizes |= {f"the network's {name}": arguments[name] for name in OUTPUTS if name in arguments}
    if len(set(map(repr, sizes.values()))) > 1:
        listed = ", ".join(f"{name} {size!r:.20}" for name, size in sizes.items())
        raise ValueError(f"{path}: expected the same number of {what}, received {listed}.")


def _check_units(
    path: object, given: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str
) -> None:
    """Check the shapes of units and scales against the header: they are allocated from it."""
    expected = {"location": given["sizes"], "unit": given["sizes"]}
    if "scales" in given:
        expected["log_scale"] = given["scales"]
    found = {
        name: tuple(tensors[prefix + name].shape) for name in expected if prefix + name in tensors
    }
    files.check_shapes(path, {name: tuple(shape) for name, shape in expected.items()}, found)


def _check_knots(
    path: object, given: list[int] | None, tensors: Mapping[str, Tensor], name: str
) -> None:
    """Raise ValueError unless the file has the knots of the header, and they are of a map."""
    own = {} if given is None else {name: tuple(given)}
    files.check_shapes(path, own, files.shapes_of({n: tensors[n] for n in (name,) if n in tensors}))
    try:
        if given is not None:
            ProbabilityMap(tensors[name])
    except ValueError as error:
        raise ValueError(f"{path}: {name!r} is damaged: {error}") from error


OUTPUTS = ("classes", "outputs")
"""Arguments of `tacit.models` that are the number of outputs."""


def _check_values(path: object, name: str, tensor: Tensor) -> None:
    if name.endswith("found_class_dim") and tensor.flatten().tolist() not in ([-1], [0], [1]):
        raise ValueError(f"{path}: {name!r} must be 1, -1, or 0 for unknown.")
    positive = name.endswith(("temperature", "unit", "factor", "std"))
    negative = not positive and not name.endswith("class_weights")
    fits = tensor.isfinite().all() and (negative or (tensor >= 0).all())
    if not fits or (positive and not (tensor > 0).all()):
        expected = "above 0" if positive else "of any sign" if negative else "of at least 0"
        raise ValueError(f"{path}: {name!r} must hold finite numbers {expected}.")


files.CHECKS["tacit_model"] = check_model
files.CHECKS["tacit_predictor"] = check_predictor
