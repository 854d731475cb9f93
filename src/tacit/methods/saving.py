"""Predictors as files: safetensors with a JSON header, nothing that runs code when it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from torch import nn

from tacit._support import files
from tacit.inference.functions import Cost, Predictor
from tacit.inference.headers import build_likelihood, build_network, describe_likelihood
from tacit.methods import swag
from tacit.methods.laplace import LastLayer
from tacit.methods.learned import Members, Plain, Sampled
from tacit.methods.mc_dropout import Dropped

KEY = "tacit_predictor"
KINDS: dict[str, type[Predictor]] = {
    kind.__name__: kind for kind in (Plain, Members, Sampled, LastLayer, Dropped, swag.Path)
}


def save(predictor: Predictor, path: str | Path) -> Path:
    """Write what a method learned to a file; replaced at once when all is written.

    Args:
        predictor: From `Method.fit`.
        path: File to write, usually ending in .safetensors.

    Raises:
        TypeError: If it is of a type of your own, which a file can't describe.
    """
    kind = type(predictor).__name__
    if KINDS.get(kind) is not type(predictor):
        raise TypeError(f"save: expected one of {', '.join(KINDS)}; received {kind}.")
    header = {
        "kind": kind,
        "settings": predictor.describe(),
        "likelihood": describe_likelihood(predictor.likelihood),
        "cost": None if predictor.cost is None else asdict(predictor.cost),
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, KEY, header, predictor.tensors())
    return path


def load(path: str | Path, make_net: Callable[[], nn.Module] | None = None) -> Predictor:
    """Return what `save` wrote, in eval mode.

    Args:
        path: The file.
        make_net: As it was given to `fit`; networks of `tacit.models` rebuild themselves.

    Raises:
        ValueError: If the file is not such a predictor, or doesn't fit the network.
    """
    if isinstance(make_net, nn.Module):
        raise TypeError("load: expected make_net, a function that makes a network, as fit does.")
    if not Path(path).is_file():
        raise FileNotFoundError(f"load: there is no file {path}.")
    header, tensors = files.read(Path(path), KEY, "tacit.methods.save")
    if header["kind"] not in KINDS:
        raise ValueError(f"load: {path} holds a {header['kind']}, none of {', '.join(KINDS)}.")
    settings, likelihood = header["settings"], build_likelihood(header["likelihood"])
    assert likelihood is not None

    def rebuild() -> nn.Module:
        return build_network(settings["network"], path)

    predictor = KINDS[header["kind"]].build(settings, make_net or rebuild, likelihood)
    files.check_fits(path, predictor.tensors(), tensors)
    for name, own in predictor.state_dict(keep_vars=True).items():
        own.data = own.data.to(tensors[name].dtype)  # in place: tied tensors stay tied
    predictor.load_tensors(tensors)
    if header["cost"] is not None:
        predictor.cost = Cost(**header["cost"])
    return predictor.eval()
