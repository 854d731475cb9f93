"""Files of results: one JSON file per finished cell, one text file per failed cell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.studies.bench.grid import Cell, check_comparable, describe, method_of
from tacit.studies.bench.summary import numbers_of

PARTS = "cell", "test", "corrupted", "foreign", "averaging", "cost"
LARGEST = 1e100  # largest number in a result; figures and sums of squares stay finite
FAILED = ".failed.txt"  # suffix of the file that holds the traceback of a failed cell


def path_of(cell: Cell, folder: Path) -> Path:
    """Return the path of a cell's result."""
    return folder / f"{cell.name}.json"


def failure_path_of(cell: Cell, folder: Path) -> Path:
    """Return the path of a cell's traceback, written if the cell fails."""
    return folder / f"{cell.name}{FAILED}"


def is_finished(cell: Cell, folder: Path) -> bool:
    """Return whether a folder holds the result of a cell.

    Raises:
        ValueError: If it holds a result of the same name with other settings.
    """
    path = path_of(cell, folder)
    if not path.exists():
        return False
    known = read_result(path)
    if (known["cell"], known["method"]) != (cell, describe(method_of(cell))):
        raise ValueError(
            f"{path} has other settings, {known['cell']} with {known['method']}; choose another "
            "folder or delete it."
        )
    return True


def read_result(path: Path) -> dict[str, Any]:
    """Return the result in a file, with its `cell` as a `Cell`.

    Raises:
        ValueError: If the file is not a result.
    """
    try:
        result: dict[str, Any] = json.loads(path.read_text())
        for name in PARTS:
            if not isinstance(result[name], Mapping):
                raise ValueError(f"expected {name!r} to hold an object")
            if name == "cell":
                result[name] = Cell.read(result[name])
        if not isinstance(result["method"], str):
            raise ValueError("expected 'method' to hold a string")
        for name, number in numbers_of(result).items():
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError(f"expected a number for {name}, received {number!r}")
            if abs(number) > LARGEST:
                raise ValueError(f"expected a number below {LARGEST:g} for {name}")
        if not result["cost"]["seconds"] > 0:
            raise ValueError("expected a number above 0 for seconds")
        return result
    except KeyError as error:
        raise ValueError(f"{path} is not a result of tacit bench: {error} is missing.") from error
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = str(error).removesuffix(".")
        raise ValueError(f"{path} is not a result of tacit bench: {reason}.") from error


def read_finished(folder: Path) -> list[dict[str, Any]]:
    """Return the results in a folder, sorted by file name; an empty list if there are none."""
    return [read_result(path) for path in sorted(folder.glob("*.json"))]


def read_results(folder: str | Path) -> list[dict[str, Any]]:
    """Return the results in a folder, at least one, all comparable.

    Raises:
        ValueError: If there are no results, or if their settings differ.

    Examples:
        >>> import tempfile
        >>> from tacit.studies.bench import run_cells
        >>> sizes = {"train_size": 64, "test_size": 10, "corrupted_size": 2}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     failed = run_cells([Cell("digits", "standard", epochs=1, **sizes)], folder, jobs=1)
        ...     (result,) = read_results(folder)
        >>> result["cell"].method, result["method"]
        ('standard', 'Standard()')
    """
    found = read_finished(Path(folder))
    if not found:
        raise ValueError(f"{folder}: there are no results of tacit bench.")
    check_comparable(result["cell"] for result in found)
    return found


def failed_names(folder: str | Path) -> list[str]:
    """Return the names of the cells that failed."""
    return sorted(path.name.removesuffix(FAILED) for path in Path(folder).glob(f"*{FAILED}"))
