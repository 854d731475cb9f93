"""The user's own objects, named as `module:name` on the command line."""

from __future__ import annotations

from typing import Any

from tacit._support.user_code import load


def load_object(target: str, option: str) -> Any:
    """Import the object `module:name`; the current folder is on the import path.

    Args:
        target: For instance `my_models.mlp:make_net`.
        option: Command-line option that named it, for the error message.

    Raises:
        ValueError: If it is a path, or the module or the name does not exist.
        UserCodeError: If importing the module raises another exception.
    """
    module = target.partition(":")[0]
    if module.startswith(".") or "/" in module or "\\" in module:
        raise ValueError(
            f"{option}: expected module:name, as in my_models.mlp:make_net, received the path "
            f"{target!r}; change to the folder of the module, or add it to PYTHONPATH."
        )
    return load(target, option)
