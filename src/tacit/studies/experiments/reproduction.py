"""Reproduction of an experiment: compute, save the numbers with their provenance, draw them."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit._support import files
from tacit._support.provenance import provenance
from tacit.studies.experiments.cells import CELLS, finite
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.verdict import Verdict

RESULTS = "results.json"
RUNNING = "folder", "jobs", "cells"  # arguments that don't affect the results of a training
PARTS = {"arguments": dict, "scale": str, "versions": dict, "results": dict}


def reproduce(experiment: Experiment, scale: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """Compute an experiment; write results.json and the figures; return what was saved.

    Args:
        experiment: The experiment.
        scale: One of its scales.
        folder: Folder of its results.
        **changes: Arguments of `compute` that differ from the scale's; those it lacks are ignored.
    """
    arguments = _arguments(experiment, scale)
    arguments |= {name: value for name, value in changes.items() if name in arguments}
    given = {**arguments, "folder": folder} if "folder" in arguments else arguments
    made_by = provenance()  # recorded first: the source may change while it runs
    start = time.monotonic()
    results = finite(experiment.compute(**given))
    saved = {
        "arguments": {name: value for name, value in arguments.items() if name not in RUNNING},
        "scale": scale,
        **made_by,
        "hours": _hours(folder, results, time.monotonic() - start),
        "cell_commits": sorted({str(cell.get("commit")) for cell in _cells(folder)}),
        "results": results,
    }
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / RESULTS, saved)
    redraw(experiment, folder)
    return read_saved(folder)


def redraw(experiment: Experiment, folder: Path) -> None:
    """Draw the figures of an experiment again, from the numbers saved in its folder."""
    experiment.draw(read_saved(folder)["results"], folder)


def read_saved(folder: Path) -> dict[str, Any]:
    """Return the saved numbers of a folder, with their arguments and provenance.

    Raises:
        ValueError: If the file was not written by `reproduce`.
    """
    path = folder / RESULTS
    try:
        loaded: dict[str, Any] = json.loads(path.read_text())
        for name, kind in PARTS.items():
            if not isinstance(loaded[name], kind):
                raise ValueError(f"{name!r} holds {loaded[name]!r:.40}")
    except KeyError as error:
        raise ValueError(
            f"{path} is not a result of tacit reproduce: {error} is missing."
        ) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a result of tacit reproduce: {error}.") from error
    return loaded


def judge(experiment: Experiment, folder: Path) -> list[Verdict]:
    """Return the verdicts on an experiment's claims from the numbers saved in its folder.

    Raises:
        ValueError: If numbers are missing.
    """
    saved = read_saved(folder)
    try:
        return experiment.verdicts(saved["results"], saved["arguments"])
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise ValueError(
            f"{folder / RESULTS} is not a result of tacit reproduce {experiment.name}: "
            f"{type(error).__name__} ({error})."
        ) from error


def is_saved(folder: Path) -> bool:
    """Return whether a folder holds saved numbers."""
    return (folder / RESULTS).exists()


def _arguments(experiment: Experiment, scale: str) -> dict[str, Any]:
    """Return the arguments of `compute` at a scale, defaults included."""
    parameters = inspect.signature(experiment.compute).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    return {**defaults, **experiment.scales[scale]}


def _hours(folder: Path, results: Mapping[str, Any], seconds: float) -> float:
    """Return the hours of a run: those of its trainings, which earlier runs may have done."""
    rows = results.get("rows", [])
    trained = sum(found.get("seconds") or 0.0 for found in (*_cells(folder), *rows))
    return max(seconds, trained) / 3600


def _cells(folder: Path) -> list[dict[str, Any]]:
    """Return the results of all trainings in a folder, which earlier commits may have computed."""
    return [json.loads(path.read_text()) for path in sorted((folder / CELLS).glob("*.json"))]
