"""Saving and loading predictors: safetensors with a JSON header, no code execution on load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from tacit._support import files
from tacit.inference.functions import Cost, Predictor
from tacit.inference.header_checks import check_likelihood
from tacit.inference.headers import build_likelihood, build_network, describe_likelihood
from tacit.inference.saving import plain_preprocessing
from tacit.methods import swag
from tacit.methods.laplace import LastLayer
from tacit.methods.learned import Members, Plain, Sampled
from tacit.methods.mc_dropout import Dropped

KEY = "tacit_predictor"
KINDS: dict[str, type[Predictor]] = {
    kind.__name__: kind for kind in (Plain, Members, Sampled, LastLayer, Dropped, swag.Path)
}


def save(
    predictor: Predictor, path: str | Path, *, preprocessing: Mapping[str, Any] | None = None
) -> Path:
    """Write a predictor to a file.

    Args:
        predictor: Predictor from `Method.fit`.
        path: File to write, usually ending in .safetensors; replaced atomically.
        preprocessing: Preprocessing of the inputs as JSON-serialisable data, which `load` restores
            as `predictor.preprocessing`.

    Returns:
        The path.

    Raises:
        TypeError: If the predictor has a custom type, which a file can't describe.

    Examples:
        >>> import tacit, tempfile
        >>> train, _, test = tacit.data.digits()
        >>> make_net = lambda: tacit.models.MLP(64, [32], 10)
        >>> predictor = tacit.methods.DeepEnsemble(2).fit(make_net, train, epochs=1, lr=0.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = tacit.methods.save(predictor, f"{folder}/ensemble.safetensors")
        ...     again = tacit.methods.load(path)
        >>> first, second = tacit.predict(predictor, test[0]), tacit.predict(again, test[0])
        >>> bool((first.label == second.label).all())
        True
    """
    kind = type(predictor).__name__
    if KINDS.get(kind) is not type(predictor):
        raise TypeError(f"save: expected one of {', '.join(KINDS)}; received {kind}.")
    header: dict[str, Any] = {
        "kind": kind,
        "settings": predictor.describe(),
        "likelihood": describe_likelihood(predictor.likelihood),
        "cost": None if predictor.cost is None else asdict(predictor.cost),
    }
    if preprocessing is not None:
        header["preprocessing"] = plain_preprocessing(preprocessing)
    path, tensors = Path(path), predictor.tensors()
    check_likelihood("save", header["likelihood"], header["settings"]["network"], tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, KEY, header, tensors)
    return path


def load(path: str | Path, make_net: Callable[[], nn.Module] | None = None) -> Predictor:
    """Return the predictor that `save` wrote, in eval mode.

    Args:
        path: File to read.
        make_net: The function that was passed to `fit`. Optional for networks of `tacit.models`,
            which are rebuilt from the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file does not hold a predictor, or doesn't fit the network.

    Examples:
        >>> import tacit, tempfile, torch
        >>> x, y = torch.randn(40, 3), torch.randint(2, (40,))
        >>> make_net = lambda: torch.nn.Linear(3, 2)
        >>> predictor = tacit.methods.Standard().fit(make_net, (x, y), epochs=1, lr=0.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = tacit.methods.save(predictor, f"{folder}/plain.safetensors")
        ...     again = tacit.methods.load(path, make_net)
        >>> again.cost == predictor.cost
        True
    """
    if isinstance(make_net, nn.Module):
        raise TypeError("load: expected make_net, a function that makes a network, as in fit.")
    if not Path(path).is_file():
        raise FileNotFoundError(f"load: there is no file {path}.")
    header, tensors = files.read(Path(path), KEY, "tacit.methods.save")
    if header["kind"] not in KINDS:
        raise ValueError(
            f"load: {path} holds a {header['kind']}; expected one of {', '.join(KINDS)}."
        )
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
    predictor.preprocessing = header.get("preprocessing")
    return predictor.eval()
