"""Package attributes that are imported on first access (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_attributes(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module-level `__getattr__` for a package.

    Args:
        package: The package's name.
        places: Attribute name -> "module" for a module, or "module:name" for an object in it.
    """

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = places[name].partition(":")
        found = import_module(module)
        return getattr(found, attribute) if attribute else found

    return get
