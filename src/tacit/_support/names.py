"""Dotted names of modules and parameters, as in state dicts."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn


def join(layer: str, tensor: str) -> str:
    """Return the dotted name of a layer's tensor; the layer "" is the module itself."""
    return f"{layer}.{tensor}" if layer else tensor


def grow(root: nn.Module, path: str) -> nn.Module:
    """Return the module at a dotted path below `root`, adding empty modules where needed."""
    for part in filter(None, path.split(".")):
        if part not in dict(root.named_children()):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root


def matches(pattern: str, parameter: str) -> bool:
    """Return whether a glob matches a parameter's name or the name of its layer."""
    layer = parameter.rpartition(".")[0]
    return fnmatchcase(parameter, pattern) or fnmatchcase(layer, pattern)
