"""How every experiment runs: compute, keep the numbers with what made them, draw from the file."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from tacit import _checks, _files
from tacit._provenance import provenance

Scales: TypeAlias = dict[str, dict[str, Any]]
"""Names of scales -> arguments of `compute` that are not its defaults."""


def run(experiment: ModuleType, arguments: Sequence[str] | None = None) -> None:
    """Run an experiment from the command line.

    Args:
        experiment: A module with `compute`, whose arguments all have defaults, `draw`, `verdicts`,
            and `SCALES`: "smoke", a run of seconds, "cpu" and "paper". If `compute` has an
            argument `folder`, it is given that of its results, to keep in or beside what is done.
        arguments: Of the command line; those of the process if left out.
    """
    name = Path(str(experiment.__file__)).stem  # run as a program its name is __main__
    parser = argparse.ArgumentParser(description=(experiment.__doc__ or name).splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results") / name)
    parser.add_argument("--scale", choices=list(experiment.SCALES), default="cpu")
    parser.add_argument("--draw", action="store_true", help="draw again from the saved numbers")
    parsed = parser.parse_args(arguments)
    if parsed.draw:
        experiment.draw(read(parsed.out)["results"], parsed.out)
    else:
        perform(experiment, parsed.scale, parsed.out)


def perform(experiment: ModuleType, scale: str, folder: Path) -> dict[str, Any]:
    """Compute, write results.json into a folder, draw its figures; return what the file holds."""
    settings = _settings(experiment.compute, experiment.SCALES[scale])
    given = {**settings, "folder": folder} if "folder" in settings else settings
    made_by = provenance()  # now: the code may change while it runs
    saved = {
        "arguments": {name: value for name, value in settings.items() if name != "folder"},
        "scale": scale,
        **made_by,
        "results": _finite(experiment.compute(**given)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    _files.write_json(folder / "results.json", saved)
    loaded = read(folder)
    experiment.draw(loaded["results"], folder)
    return loaded


def read(folder: Path) -> dict[str, Any]:
    """Return the saved results of a folder."""
    loaded: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return loaded


def _settings(compute: Callable[..., Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {name: p.default for name, p in inspect.signature(compute).parameters.items()}
    return {**defaults, **changed}


def _finite(value: Any) -> Any:
    """Return results with None for what is not finite, which JSON has no word for."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return _checks.finite_or_none(value)
