"""Loading and calling user code named as `module:name`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class UserCodeError(Exception):
    """User code raised an exception, which is shown with its traceback."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call user code; wrap any exception in `UserCodeError`, to distinguish it from tacit's."""
    try:
        return function(*arguments)
    except Exception as error:
        raise UserCodeError(error) from error


def load(target: str, option: str) -> Any:
    """Import the object `module:name`; the current folder is on the import path.

    Args:
        target: For instance `my_models.mlp:make_net`.
        option: Command-line option that named it, for the error message.

    Raises:
        ValueError: If the module or the name does not exist.
        UserCodeError: If importing the module raises another exception.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ValueError(f"{option}: expected module:name, received {target!r}.")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(
            f"{option}: expected the dotted name of a module (folder/file.py is folder.file), "
            f"received {module_name!r}."
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            # The module exists, but one of its own imports does not.
            raise UserCodeError(error) from error
        hint = f" (without .py: {module_name[:-3]}:{name})" if module_name.endswith(".py") else ""
        raise ValueError(f"{option}: there is no module {module_name!r} here{hint}.") from None
    except Exception as error:
        raise UserCodeError(error) from error
    if not hasattr(module, name):
        raise ValueError(f"{option}: the module {module_name!r} has no {name!r}.")
    return getattr(module, name)
