"""Fitted estimators in files: the model, and beside it the estimator as JSON data."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit._support import schema
from tacit._support.files import check_header
from tacit.calling import Variational
from tacit.data.table_encoder import TableEncoder
from tacit.inference import load as load_model
from tacit.inference import save as save_model
from tacit.likelihood import Categorical
from tacit.models import MODELS

FRACTION = schema.number(0, 1)
COUNT = schema.integer(1)
LABELS: dict[str, schema.Rule] = {
    "bool": schema.boolean,
    "int64": schema.integer(-(2**63), 2**63 - 1),
    "float64": schema.number(),
    "str": schema.text,
    "object": schema.text,  # pandas
}
"""Type of an array of labels -> rule of a label."""
CLASSES = schema.one_kind_of(
    {
        kind: schema.record({"kind": schema.text, "labels": schema.list_of(rule)})
        for kind, rule in LABELS.items()
    }
)


def _scores(name: str, value: Any) -> None:
    rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    schema.list_of(schema.list_of(schema.number(0)))(name, rows)
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"{name}: expected rows of the same length.")


RULE = schema.record(
    {
        "kind": schema.one_of("VariationalClassifier", "VariationalRegressor"),
        "parameters": schema.record(
            {
                "hidden": schema.list_of(COUNT),
                "samples": COUNT,
                "epochs": schema.optional(COUNT),
                "lr": schema.optional(schema.number(0)),
                "batch_size": COUNT,
                "validation_fraction": FRACTION,
                "conformal_fraction": FRACTION,
                "random_state": schema.optional(schema.integer(0)),
                "verbose": schema.integer(0),
            }
        ),
        "own_network": schema.boolean,
        "seed": schema.integer(0, 2**31),
        "feature_names": schema.optional(schema.list_of(schema.text)),
        "classes": schema.optional(CLASSES),
        "scores": schema.optional(_scores),
        "table": schema.anything,  # checked by TableEncoder.from_dict
    }
)


def save(estimator: Any, path: str | Path) -> Path:
    """Write a fitted estimator to a file of `tacit.save`, with what it adds as `preprocessing`."""
    model: Variational = estimator.model_
    net = type(model.module)
    if MODELS.get(net.__name__) is not net:
        raise TypeError(
            f"save: expected a network of tacit.models, received {net.__name__}, which a file "
            "can't describe. Use joblib.dump(estimator, path), which needs pickle and its code."
        )
    names = getattr(estimator, "feature_names_in_", None)
    classes = getattr(estimator, "classes_", None)
    scores = estimator.conformal_scores_
    given = {
        "kind": type(estimator).__name__,
        "parameters": _plain_parameters(estimator),
        "own_network": estimator.module is not None,
        "seed": estimator.seed_,
        "feature_names": None if names is None else names.tolist(),
        "classes": None if classes is None else _describe_classes(classes),
        "scores": None if scores is None else scores.tolist(),
        "table": estimator.encoder_.to_dict(),
    }
    RULE("save", given)
    return save_model(model, path, preprocessing={"estimator": given})


def load(kind: type[Any], path: str | Path) -> Any:
    """Return the fitted estimator of a file.

    A network passed as `module` becomes the trained one: fitted again, it starts from there.
    """
    model = load_model(path)
    given = (model.preprocessing or {}).get("estimator")
    if given is None:
        raise ValueError(f"load: {path} holds a model without an estimator; use tacit.load.")
    check_header(path, given, RULE)
    if given["kind"] != kind.__name__:
        raise ValueError(f"load: {path} holds a {given['kind']}; use {given['kind']}.load.")
    parameters = {**given["parameters"], "hidden": tuple(given["parameters"]["hidden"])}
    module = copy.deepcopy(model.module) if given["own_network"] else None
    estimator = kind(**parameters, module=module)
    estimator.model_, estimator.seed_ = model, given["seed"]
    estimator.encoder_ = TableEncoder.from_dict(given["table"])
    estimator.n_features_in_ = len(estimator.encoder_.columns)
    if given["feature_names"] is not None:
        estimator.feature_names_in_ = np.array(given["feature_names"], dtype=object)
    if given["classes"] is not None:
        estimator.classes_ = np.array(given["classes"]["labels"], dtype=given["classes"]["kind"])
    scores = given["scores"]
    estimator.conformal_scores_ = None if scores is None else np.array(scores, dtype=np.float64)
    _check_fits(path, estimator)
    return estimator


def _plain_parameters(estimator: Any) -> dict[str, Any]:
    """Return the parameters as JSON data; a generator as random state becomes None."""
    found = estimator.get_params(deep=False)
    del found["module"]
    found["hidden"] = [int(width) for width in found["hidden"]]
    found["verbose"] = int(found["verbose"])
    if isinstance(found["random_state"], np.random.RandomState):
        found["random_state"] = None
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in found.items()}


def _describe_classes(classes: NDArray[Any]) -> dict[str, Any]:
    kinds = {"b": "bool", "i": "int64", "u": "int64", "f": "float64", "U": "str", "O": "object"}
    found = {"kind": kinds.get(classes.dtype.kind), "labels": classes.tolist()}
    try:
        CLASSES("classes_", found)
    except ValueError as error:
        raise TypeError(
            f"save: expected labels that are strings, numbers or booleans: {error}"
        ) from None
    return found


def _check_fits(path: object, estimator: Any) -> None:
    """Raise ValueError unless table and labels fit the model of the file."""
    model: Variational = estimator.model_
    likelihood, classes = model.likelihood, getattr(estimator, "classes_", None)
    names = likelihood.class_names if isinstance(likelihood, Categorical) else None
    labels = None if classes is None else tuple(str(label) for label in classes.tolist())
    columns = None if model.inputs is None else len(model.inputs.mean)
    features = getattr(estimator, "feature_names_in_", estimator.encoder_.columns)
    if (
        labels != names
        or (labels is None) != (type(estimator).__name__ == "VariationalRegressor")
        or columns != len(estimator.encoder_.features)
        or len(features) != estimator.n_features_in_
    ):
        raise ValueError(f"load: {path} is damaged: its model doesn't fit its estimator.")
