"""From `module:name` to the object."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class UserCodeError(Exception):
    """The user's own code raised an error: it is shown with its traceback."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's code; what it raises is no error in our arguments."""
    try:
        return function(*arguments)
    except Exception as error:
        raise UserCodeError(error) from error


def load(target: str, option: str) -> Any:
    """Return the object that `module:name` means; modules of the current folder can be named.

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
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise UserCodeError(
                error
            ) from error  # it is there, but something that it imports is not
        hint = f" (without .py: {module_name[:-3]}:{name})" if module_name.endswith(".py") else ""
        raise ValueError(f"{option}: there is no module {module_name!r} here{hint}.") from None
    except Exception as error:
        raise UserCodeError(error) from error
    if not hasattr(module, name):
        raise ValueError(f"{option}: the module {module_name!r} has no {name!r}.")
    return getattr(module, name)
