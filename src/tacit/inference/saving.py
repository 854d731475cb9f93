"""Models as files: safetensors with a JSON header, nothing that runs code when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tacit._support import files
from tacit.calling import Variational
from tacit.inference.headers import build_model, build_network, describe_model
from tacit.scaling import Parametrization

KEY = "tacit_model"


def save(
    model: Variational, path: str | Path, *, preprocessing: Mapping[str, Any] | None = None
) -> Path:
    """Write a model to a file.

    The file holds the means and factors, which layers are random and how, the noise, and the
    likelihood with its class names and temperature. Not the code of the network: `load` needs it,
    unless it is one of `tacit.models`.

    Args:
        model: A variational model.
        path: File to write, usually ending in .safetensors; replaced at once when all is written.
        preprocessing: What has to be done to inputs, as plain data (numbers, strings, lists), for
            instance {"mean": 0.13, "std": 0.31}. It comes back as `model.preprocessing`.

    Raises:
        TypeError: If a part of the model has a type of your own, which a file can't describe.
    """
    if not isinstance(model, Variational):
        raise TypeError(
            f"save: expected a variational model, received {type(model).__name__}. What a method "
            "of tacit.methods learned is saved by tacit.methods.save."
        )
    header = describe_model(model)
    if preprocessing is not None:
        header["preprocessing"] = dict(preprocessing)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, KEY, header, model.state_dict())
    return path


def load(
    path: str | Path,
    net: nn.Module | None = None,
    *,
    parametrization: Parametrization | None = None,
) -> Variational:
    """Return the model that `save` wrote, in eval mode.

    Args:
        path: The file.
        net: The network, as it was given to `variational`; its parameters are overwritten. A
            network of `tacit.models` rebuilds itself, so it can be left out.
        parametrization: For training on; it is not in the file.

    Raises:
        ValueError: If the file is not such a model, or doesn't fit the network.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"load: there is no file {path}.")
    header, tensors = files.read(Path(path), KEY, "tacit.save")
    net = build_network(header["network"], path) if net is None else net
    model = build_model(header, net, path, parametrization)
    files.check_fits(path, model.state_dict(), tensors)
    model.load_state_dict(tensors)
    return model.eval()
