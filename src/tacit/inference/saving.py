"""Saving and loading models: safetensors with a JSON header, no code execution on load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tacit._support import files
from tacit.calling import Variational
from tacit.inference.header_checks import check_likelihood
from tacit.inference.headers import build_model, build_network, describe_model
from tacit.scaling import Parametrization

KEY = "tacit_model"


def save(
    model: Variational, path: str | Path, *, preprocessing: Mapping[str, Any] | None = None
) -> Path:
    """Write a model to a file.

    The file holds the means and factors, the covariance of each random layer, the noise, and the
    likelihood with its class names and temperature. It does not hold the network's code: `load`
    needs the network, unless it is one of `tacit.models`.

    Args:
        model: A variational model.
        path: File to write, usually ending in .safetensors; replaced atomically.
        preprocessing: Preprocessing of the inputs as JSON-serialisable data, for instance
            {"mean": 0.13, "std": 0.31}. `load` restores it as `model.preprocessing`.

    Returns:
        The path.

    Raises:
        TypeError: If a part of the model has a custom type, which a file can't describe, or the
            preprocessing is not JSON-serialisable.
    """
    if not isinstance(model, Variational):
        raise TypeError(
            f"save: expected a variational model, received {type(model).__name__}. Save the "
            "predictors of tacit.methods with tacit.methods.save."
        )
    header = describe_model(model)
    if preprocessing is not None:
        header["preprocessing"] = plain_preprocessing(preprocessing)
    path, tensors = Path(path), model.state_dict()
    check_likelihood("save", header["likelihood"], header["network"], tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, KEY, header, tensors)
    return path


def plain_preprocessing(preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preprocessing as it will be read from the file."""
    if not isinstance(preprocessing, Mapping):
        raise TypeError(f"preprocessing: expected a dict, received {preprocessing!r}.")
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(preprocessing)))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"preprocessing: expected JSON-serialisable data (numbers, strings, lists, dicts): "
            f"{error}. Convert arrays with .tolist() and NumPy numbers with .item()."
        ) from error
    return found


def load(
    path: str | Path,
    net: nn.Module | None = None,
    *,
    parametrization: Parametrization | None = None,
) -> Variational:
    """Return the model that `save` wrote, in eval mode.

    Args:
        path: File to read.
        net: The plain network that was passed to `variational`; its parameters are overwritten.
            Optional for networks of `tacit.models`, which are rebuilt from the file, in its
            precision.
        parametrization: Parametrization for further training; not stored in the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file does not hold a model, is damaged, or doesn't fit the network.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"load: there is no file {path}.")
    header, tensors = files.read(Path(path), KEY, "tacit.save")
    rebuilt = ("",) if net is None else ("likelihood.", "inputs.")
    net = build_network(header["network"], path) if net is None else net
    model = build_model(header, net, path, parametrization)
    files.check_fits(path, model.state_dict(), tensors)
    for name, own in model.state_dict(keep_vars=True).items():
        if name.startswith(rebuilt):
            own.data = own.data.to(tensors[name].dtype)  # in place: tied tensors stay tied
    model.load_state_dict(tensors)
    return model.eval()
