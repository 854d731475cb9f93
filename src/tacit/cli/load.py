"""From `module:name` on the command line to the object."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def load(target: str, option: str) -> Any:
    """Return the object that `module:name` means; the current folder is looked in first.

    Args:
        target: For instance `my_models.mlp:make_net`.
        option: What it was given for, for the error message.

    Raises:
        ValueError: If there is no such module or name.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ValueError(f"{option}: expected module:name, received {target!r}.")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise  # the module is there, but something that it imports is not
        raise ValueError(f"{option}: there is no module {module_name!r} here.") from None
    if not hasattr(module, name):
        raise ValueError(f"{option}: the module {module_name!r} has no {name!r}.")
    return getattr(module, name)
