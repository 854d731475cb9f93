"""Loading published weights, with a report of the tensors that were not loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

# Buffers that batch norm has and group norm doesn't.
RUNNING = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Loaded:
    """The result of `load_weights`.

    Args:
        loaded: Names of the network's tensors that were loaded.
        kept: Names of the network's tensors that were left unchanged: those of skipped layers, and
            batch norm's batch counters if the file has none.
        unused: Names of the file's tensors that were not used: those of skipped layers, and batch
            norm's running statistics if the network has group norm.

    Examples:
        >>> from tacit.models import MLP, load_weights
        >>> pretrained = MLP(64, [32], 100).state_dict()
        >>> report = load_weights(MLP(64, [32], 10), pretrained, skip=["3"])
        >>> report.loaded, report.kept
        (('1.weight', '1.bias'), ('3.weight', '3.bias'))
    """

    loaded: tuple[str, ...]
    kept: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        kept = ", ".join(self.kept) or "none"
        unused = f", {len(self.unused)} of the file not used" if self.unused else ""
        return f"{len(self.loaded)} tensors loaded; left as they were: {kept}{unused}"


def load_weights(
    net: nn.Module, weights: Mapping[str, Tensor] | str | Path, *, skip: Sequence[str] = ()
) -> Loaded:
    """Load weights into a network by name, from a state dict or a file.

    Weights are never loaded partially without notice: a missing, unexpected or differently shaped
    tensor is an error unless its layer is listed in `skip`. There are two exceptions. If the
    network has group norm in place of batch norm, scale and shift are loaded and running statistics
    ignored. Batch norm's batch counters may be missing, as in older files.

    Args:
        net: The network.
        weights: Tensors by name, or a file: safetensors, or a state dict saved by torch (read
            without running code).
        skip: Layers to leave unchanged, for instance ["conv1", "fc"].

    Returns:
        Which tensors were loaded, kept and unused.

    Raises:
        ValueError: If the weights don't fit; the network is then unchanged.

    Examples:
        >>> import torch
        >>> from tacit.models import ResNet18, load_weights
        >>> others = ResNet18(norm="batch", width=8, classes=1000).state_dict()
        >>> print(load_weights(ResNet18(width=8), others, skip=["fc"]))
        60 tensors loaded; left as they were: fc.weight, fc.bias, 62 of the file not used
    """
    skip = [skip] if isinstance(skip, str) else skip
    found = dict(weights) if isinstance(weights, Mapping) else read_weights(weights)
    own = net.state_dict()
    unknown = [layer for layer in skip if not any(_in(name, [layer]) for name in own)]
    if unknown:
        parts = ", ".join(dict.fromkeys(name.partition(".")[0] for name in own))
        raise ValueError(
            f"skip: the network has no layer {', '.join(unknown)}. It consists of {parts}."
        )
    loaded = tuple(name for name in own if name in found and not _in(name, skip))
    # Older files have no batch counters, and nothing depends on them.
    kept = tuple(
        name
        for name in own
        if name not in loaded and (_in(name, skip) or name.endswith(".num_batches_tracked"))
    )
    unused = tuple(name for name in found if name not in loaded)
    problems = [f"{name} is missing" for name in own if name not in (*loaded, *kept)]
    problems += [
        f"{name} is not in the network"
        for name in unused
        if not _in(name, skip) and name.rpartition(".")[2] not in RUNNING
    ]
    problems += [
        f"{name} is {tuple(own[name].shape)} in the network and {tuple(found[name].shape)} in the "
        "weights"
        for name in loaded
        if own[name].shape != found[name].shape
    ]
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError(f"weights don't fit: {'; '.join(problems[:5])}{more}.")
    net.load_state_dict({**own, **{name: found[name] for name in loaded}})
    return Loaded(loaded, kept, unused)


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a weight file by name.

    Args:
        path: A safetensors file, or a state dict saved by torch, which is read without running
            code.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"weights: there is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, LookupError, UnpicklingError) as error:
        raise ValueError(f"weights: {path} can't be read: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise ValueError(f"weights: {path} is not a state dict (tensors by name).")
    return found


def load_pretrained(
    net: nn.Module, source: str | Path, name: str | None, *, first: str, last: str
) -> Loaded:
    """Load ImageNet weights into a network, except a first or last layer of another shape.

    Args:
        net: The network.
        source: "imagenet" for torchvision's weights, or a file.
        name: torchvision's name of the network; None if torchvision doesn't have it.
        first: Name of the first layer, skipped if shapes differ.
        last: Name of the last layer, skipped if shapes differ.
    """
    if not isinstance(source, (str, Path)):
        raise TypeError(f"pretrained: expected 'imagenet' or a file, received {source!r}.")
    from_torchvision = name is not None and source == "imagenet"
    found = torchvision_weights(str(name)) if from_torchvision else read_weights(source)
    own = net.state_dict()
    skip = [
        layer
        for layer in (first, last)
        if any(_in(name, [layer]) and own[name].shape != found[name].shape
               for name in own.keys() & found.keys())
    ]  # fmt: skip
    return load_weights(net, found, skip=skip)


def torchvision_weights(name: str) -> dict[str, Tensor]:
    """Return torchvision's ImageNet weights, which it downloads.

    Raises:
        ModuleNotFoundError: If torchvision is not installed or not compatible with torch.
    """
    try:
        from torchvision.models import get_model_weights
    except (ImportError, RuntimeError) as error:
        raise ModuleNotFoundError(
            f"pretrained='imagenet' needs torchvision ({error}). Install it, or pass a file of its "
            f"weights: pretrained='{name}.pth'.",
            name="torchvision",
        ) from None
    weights: dict[str, Tensor] = get_model_weights(name).DEFAULT.get_state_dict()
    return weights


def _in(name: str, layers: Sequence[str]) -> bool:
    return any(name == layer or name.startswith(f"{layer}.") for layer in layers)
