"""The identity of a run: everything that changes its result, compared when it resumes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.calling import Variational
from tacit.data.batches import Batches
from tacit.likelihood import Likelihood
from tacit.scaling.parametrization import Parametrization, Standard
from tacit.training.fingerprint import digest, fingerprint

POINTS = 64  # number of points at which a schedule is evaluated
SHOWN = 3  # differences listed for each part of the identity
DEPTH = 4  # maximum nesting of described settings
FEW = 16  # maximum size of a tensor that is shown rather than hashed

# Attributes of a likelihood that change predictions, not training; `calibrate` sets some of them.
# Training data determine `found_class_dim`.
PREDICTION = (
    *("temperature", "offset", "scope", "averaging", "class_names", "names", "factor"),
    *("found_class_dim", "knots", "degrees"),
)

FUNCTIONS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, functools.partial,
)  # fmt: skip
PLAIN = (bool, int, float, str, np.generic, torch.dtype)


def describe_model(model: nn.Module, parametrization: Parametrization | None) -> dict[str, Any]:
    """Return noise, covariances, parametrization and structure of a model, as JSON data."""
    if isinstance(model, Variational):
        parametrization = model.parametrization
    return {
        "noise": describe(model.noise) if isinstance(model, Variational) else None,
        "covariances": {layer.label: describe(layer.covariance) for layer in model.layers}
        if isinstance(model, Variational)
        else {},
        "parametrization": describe(parametrization or Standard()),
        "network": describe_network(model),
    }


def describe_network(model: nn.Module) -> dict[str, dict[str, str]]:
    """Return for each layer of a network its type, shapes, settings and mode.

    Settings are what `extra_repr` shows, and public attributes that are numbers, strings or
    functions: an activation is often a function.
    """
    module = model.module if isinstance(model, Variational) else model
    found = {}
    for name, layer in module.named_modules():
        settings = {
            key: describe(value)
            for key, value in vars(layer).items()
            if not key.startswith("_") and key not in ("training", "forward") and _simple(value)
        }
        found[name] = {
            "type": type(layer).__name__,
            "parameters": ", ".join(
                f"{key} {_shape(p)}{'' if p.requires_grad else ' frozen'}"
                for key, p in layer.named_parameters(recurse=False)
            ),
            "buffers": ", ".join(
                f"{key} {_shape(b)}" for key, b in layer.named_buffers(recurse=False)
            ),
            "settings": layer.extra_repr(),
            # A layer in eval mode within a model in train mode stays in eval mode (batch norm).
            "mode": "eval" if model.training and not layer.training else "train",
            **settings,
        }
    return found


def unchanged(
    start: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    """Return the entries of `describe_network` that training has not changed.

    A network may count its calls or keep a shape in an attribute: these are not settings.
    """
    return {
        layer: {
            key: value for key, value in entries.items() if now.get(layer, {}).get(key) == value
        }
        for layer, entries in start.items()
    }


def describe_likelihood(likelihood: Likelihood, *, averaging: bool) -> dict[str, str]:
    """Return kind and settings of a likelihood, without what is learned.

    Args:
        likelihood: The likelihood.
        averaging: Whether training depends on the averaging of predictions (early stopping).
    """
    kept = [*vars(likelihood).items(), *likelihood.named_buffers()]
    frozen = [(key, p) for key, p in likelihood.named_parameters() if not p.requires_grad]
    learned = ", ".join(key for key, p in likelihood.named_parameters() if p.requires_grad)
    skipped = PREDICTION if not averaging else tuple(p for p in PREDICTION if p != "averaging")
    settings = {
        key: describe(value)
        for key, value in (*kept, *frozen)
        if not key.startswith("_") and key not in ("training", *skipped)
    }
    return {"kind": type(likelihood).__name__, "learned": learned, **settings}


def describe_training_data(data: Batches) -> dict[str, Any]:
    """Return the fingerprint of training data, and their augmentation if any, as JSON data."""
    augmentation = {} if data.augment is None else {"augmentation": describe(data.augment)}
    return {**fingerprint(data), **augmentation}


def schedule_values(factor: Callable[[float], float]) -> list[float]:
    """Return the values of a schedule on a grid over training."""
    return [factor(i / POINTS) for i in range(POINTS)]


def describe(value: Any, depth: int = 0) -> str:
    """Return settings as text: the same for equal settings, in every process and session."""
    if isinstance(value, Tensor | np.ndarray):
        tensor = torch.as_tensor(value).detach()
        return (
            str(tensor.tolist()) if tensor.numel() <= FEW else f"{_shape(tensor)} {digest(tensor)}"
        )
    if isinstance(value, bool | str | torch.dtype) or value is None:
        return repr(value)
    if isinstance(value, Integral | np.bool_):
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, FUNCTIONS):
        return _describe_function(value, depth)
    if isinstance(value, type) or depth >= DEPTH:
        return value.__name__ if isinstance(value, type) else type(value).__name__
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {describe(v, depth + 1)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple | set | frozenset):
        parts = [describe(part, depth + 1) for part in value]
        return f"({', '.join(sorted(parts) if isinstance(value, set | frozenset) else parts)})"
    if isinstance(value, nn.Module):
        return f"{type(value).__name__} {digest(repr(describe_network(value)))}"
    return _describe_object(value, depth)


def _describe_object(value: Any, depth: int) -> str:
    if dataclasses.is_dataclass(value):
        entries = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        entries = {k: v for k, v in getattr(value, "__dict__", {}).items() if k[:1] != "_"}
    listed = ", ".join(f"{name}={describe(entry, depth + 1)}" for name, entry in entries.items())
    return f"{type(value).__name__}({listed})"


def _describe_function(function: Any, depth: int) -> str:
    if isinstance(function, functools.partial):
        parts = (function.func, function.args, function.keywords)
        return f"partial({', '.join(describe(part, depth + 1) for part in parts)})"
    if not isinstance(function, types.FunctionType):
        return str(function.__qualname__)
    # The name alone doesn't tell two lambdas apart.
    cells = [cell.cell_contents for cell in function.__closure__ or () if _simple_cell(cell)]
    given = describe((function.__defaults__, function.__kwdefaults__, cells), depth + 1)
    code = hashlib.sha256(_code(function.__code__) + given.encode()).hexdigest()[:8]
    return f"{function.__name__} {code}"


def _code(code: types.CodeType) -> bytes:
    constants = (
        _code(constant) if isinstance(constant, types.CodeType) else repr(constant).encode()
        for constant in code.co_consts
    )
    return b"\0".join((code.co_code, repr(code.co_names).encode(), *constants))


def _simple_cell(cell: types.CellType) -> bool:
    try:
        return _simple(cell.cell_contents)
    except ValueError:  # not assigned yet
        return False


def _simple(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_simple(part) for part in value)
    return isinstance(value, (*PLAIN, *FUNCTIONS))


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def check_same_run(folder: object, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the differences, unless a checkpoint is of the same run.

    A run may be extended by more epochs, unless its schedule or average depends on their number.

    Args:
        folder: Folder of the checkpoint.
        before: Identity of the run that wrote the checkpoint.
        now: Identity of the run that resumes.
    """
    advice = "Use another folder, or resume='never' to start afresh."
    missing = [name for name in now if name not in before]
    if missing:
        raise ValueError(
            f"checkpoint: the checkpoints in {folder} are of another version of tacit: they don't "
            f"record {', '.join(missing)}, so they can't be matched to this run. {advice}"
        )
    extendable = now["schedule"] == "constant" and not now["average"]
    extended = {"epochs": now["epochs"]} if extendable else {}
    different = differences({**before, **extended}, now)
    if different:
        raise ValueError(
            f"checkpoint: {folder} belongs to another run: it had {'; '.join(different)}. {advice}"
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs between the identities of two runs, one phrase for each part."""
    found: list[str] = []
    for name, value in now.items():
        old = before[name]
        if isinstance(value, dict) and isinstance(old, dict):
            parts = _table_differences(old, value)
            if parts:
                more = f" and {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
                found.append(f"{name}: {', '.join(parts[:SHOWN])}{more}")
        elif isinstance(value, list) and isinstance(old, list) and len(value) == len(old):
            for i in [i for i, number in enumerate(value) if number != old[i]][:1]:
                at = f"at progress {i / len(value):.3g}"
                found.append(f"{name} {old[i]!r}, now {value[i]!r} {at}")
        elif old != value:
            found.append(f"{name} {old!r}, now {value!r}")
    return found


def _table_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        here, there = old.get(key), new.get(key)
        label = repr(key) if key else "the network"
        if isinstance(here, dict) and isinstance(there, dict):
            # Entries missing from the old one appeared during training; see `unchanged`.
            entry = next((e for e, value in here.items() if there.get(e) != value), None)
            if entry is not None:
                found.append(f"{label} {entry} {here[entry]}, now {there.get(entry)}")
        elif here != there:
            found.append(f"{label} {_brief(here)}, now {_brief(there)}")
    return found


def _brief(value: Any) -> str:
    return "missing" if value is None else value["type"] if isinstance(value, dict) else str(value)
