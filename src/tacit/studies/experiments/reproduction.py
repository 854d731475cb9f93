"""Reproduction of an experiment: compute, save the numbers with their provenance, draw them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit._support import checks, files
from tacit._support.provenance import provenance
from tacit.studies.experiments.experiment import Experiment

RESULTS = "results.json"


def reproduce(experiment: Experiment, scale: str, folder: Path) -> dict[str, Any]:
    """Compute an experiment; write results.json and the figures; return what was saved.

    Args:
        experiment: The experiment.
        scale: One of its scales.
        folder: Folder of its results.
    """
    arguments = _arguments(experiment, scale)
    given = {**arguments, "folder": folder} if "folder" in arguments else arguments
    made_by = provenance()  # recorded first: the source may change while it runs
    saved = {
        "arguments": {name: value for name, value in arguments.items() if name != "folder"},
        "scale": scale,
        **made_by,
        "results": _finite(experiment.compute(**given)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / RESULTS, saved)
    redraw(experiment, folder)
    return read_saved(folder)


def redraw(experiment: Experiment, folder: Path) -> None:
    """Draw the figures of an experiment again, from the numbers saved in its folder."""
    experiment.draw(read_saved(folder)["results"], folder)


def read_saved(folder: Path) -> dict[str, Any]:
    """Return the saved numbers of a folder, with their arguments and provenance."""
    loaded: dict[str, Any] = json.loads((folder / RESULTS).read_text())
    return loaded


def is_saved(folder: Path) -> bool:
    """Return whether a folder holds saved numbers."""
    return (folder / RESULTS).exists()


def _arguments(experiment: Experiment, scale: str) -> dict[str, Any]:
    """Return the arguments of `compute` at a scale, defaults included."""
    parameters = inspect.signature(experiment.compute).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    return {**defaults, **experiment.scales[scale]}


def _finite(value: Any) -> Any:
    """Return results with None for numbers that are not finite, which JSON can't represent."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return checks.finite_or_none(value)
