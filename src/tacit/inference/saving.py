"""Saving and loading models: safetensors with a JSON header, no code execution on load."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support import files
from tacit._support.names import join
from tacit.calling import Variational
from tacit.inference.header_checks import check_likelihood
from tacit.inference.headers import build_model, build_network, describe_model, frozen
from tacit.scaling import Parametrization
from tacit.weights.adapter import adapted_layers, merge_adapters

KEY = "tacit_model"


def save(
    model: Variational, path: str | Path, *, preprocessing: Mapping[str, Any] | None = None
) -> Path:
    """Write a model to a file.

    The file holds the means and factors, the covariance of each random layer, the noise, and the
    likelihood with its class names and temperature. It does not hold the network's code: `load`
    needs the network, unless it is one of `tacit.models`. Of a model with `tacit.adapters` it holds
    only what is trained, and a checksum of the frozen weights: `load` needs the pretrained network.

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

    Examples:
        >>> import tacit, tempfile
        >>> model = tacit.variational(tacit.models.MLP(4, [8], 3), likelihood=tacit.Categorical())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = tacit.save(model, f"{folder}/m.safetensors", preprocessing={"mean": 0.13})
        ...     again = tacit.load(path)
        >>> again.preprocessing, again.likelihood
        ({'mean': 0.13}, Categorical(temperature=1))
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
    header["frozen"] = None
    if header["adapters"] is not None:
        header["frozen"] = checksum(model.module)
        tensors = _without_frozen(model)
    check_likelihood("save", header["likelihood"], header["network"], tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, KEY, header, tensors)
    return path


def _without_frozen(model: Variational) -> dict[str, Tensor]:
    """Return the state of a model except for the wrapped module's frozen parameters."""
    absent = {join("module", name) for name in frozen(model.module)}
    return {name: value for name, value in model.state_dict().items() if name not in absent}


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
            For a file with adapters the pretrained one, in the same precision: it gets them.
            Optional for networks of `tacit.models`, which are rebuilt from the file, in its
            precision.
        parametrization: Parametrization for further training; not stored in the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file does not hold a model, is damaged, or doesn't fit the network; if
            it holds adapters, also if the network's weights are not those that were frozen.

    Examples:
        >>> import tacit, tempfile, torch
        >>> model = tacit.variational(torch.nn.Linear(4, 3), likelihood=tacit.Categorical()).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = tacit.save(model, f"{folder}/model.safetensors")
        ...     again = tacit.load(path, torch.nn.Linear(4, 3))
        >>> x = torch.randn(2, 4)
        >>> torch.equal(again(x), model(x))
        True
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"load: there is no file {path}.")
    header, tensors = files.read(Path(path), KEY, "tacit.save")
    if header["frozen"] is not None and net is None:
        raise ValueError(
            f"load: {path} holds adapters; expected the pretrained network, tacit.load(path, net)."
        )
    rebuilt = ("",) if net is None else ("likelihood.", "inputs.")
    net = build_network(header["network"], path) if net is None else net
    with _unchanged_on_failure(net):
        model = build_model(header, net, path, parametrization)
        state = model.state_dict()
        if header["frozen"] is not None:
            _check_frozen(path, header["frozen"], model)
            state = _without_frozen(model)
        files.check_fits(path, state, tensors)
    for name, own in model.state_dict(keep_vars=True).items():
        if name.startswith(rebuilt):
            own.data = own.data.to(tensors[name].dtype)  # in place: tied tensors stay tied
    model.load_state_dict({**model.state_dict(), **tensors})
    return model.eval()


@contextmanager
def _unchanged_on_failure(net: nn.Module) -> Iterator[None]:
    """Take adapters away from a network that had none, if they turn out not to fit it."""
    adapted = next(adapted_layers(net), None) is not None
    trained = {value: value.requires_grad for value in net.parameters()}
    try:
        yield
    except Exception:
        if not adapted:
            merge_adapters(net)  # their terms are still 0
            for value, own in trained.items():
                value.requires_grad_(own)
        raise


def checksum(module: nn.Module) -> str:
    """Return the CRC-32 of a module's frozen parameters, with their names and types."""
    total = 0
    for name, value in sorted(frozen(module).items()):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        total = zlib.crc32(f"{name} {value.dtype}".encode(), total)
        total = zlib.crc32(memoryview(flat.numpy()), total)  # type: ignore[arg-type]
    return f"{total:08x}"


def _check_frozen(path: str | Path, expected: str, model: Variational) -> None:
    if checksum(model.module) != expected:
        raise ValueError(
            f"load: {path} holds adapters of a {type(model.module).__name__} with other frozen "
            "weights. Pass the pretrained network that they were trained for, in "
            "the same precision."
        )
