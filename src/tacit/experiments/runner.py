"""How every experiment runs: compute, keep the numbers with what made them, draw from the file."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tacit._provenance import provenance


def run(experiment: ModuleType, arguments: Sequence[str] | None = None) -> None:
    """Run an experiment from the command line.

    Args:
        experiment: A module with `compute`, whose arguments all have defaults, `draw`, and `SMOKE`,
            the arguments of a run of seconds.
        arguments: Of the command line; those of the process if left out.
    """
    name = Path(str(experiment.__file__)).stem  # run as a program its name is __main__
    parser = argparse.ArgumentParser(description=(experiment.__doc__ or name).splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results") / name)
    parser.add_argument("--smoke", action="store_true", help="a run of seconds: does it work?")
    parser.add_argument("--draw", action="store_true", help="draw again from the saved numbers")
    parsed = parser.parse_args(arguments)
    if parsed.draw:
        saved = json.loads((parsed.out / "results.json").read_text())
        experiment.draw(saved["results"], parsed.out)
        return
    settings = _settings(experiment.compute, experiment.SMOKE if parsed.smoke else {})
    saved = save(parsed.out, settings, experiment.compute(**settings))
    experiment.draw(saved["results"], parsed.out)


def save(folder: Path, settings: Mapping[str, Any], results: Any) -> dict[str, Any]:
    """Write results.json into a folder and return what it holds."""
    saved = {
        "arguments": dict(settings),
        **provenance(),
        "results": results,
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(saved, indent=1, allow_nan=False)
    (folder / "results.json").write_text(text + "\n")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _settings(compute: Callable[..., Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {name: p.default for name, p in inspect.signature(compute).parameters.items()}
    return {**defaults, **changed}
