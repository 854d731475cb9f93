"""Many trainings of an experiment: each is a cell whose result is written when it is done.

A stopped or killed experiment therefore continues with the missing cells.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tacit._support import checks, files
from tacit._support.provenance import provenance
from tacit.studies.folders import check_folder

CELLS = "cells"  # subfolder of an experiment's results
ALL = "*"  # pattern of all cells


def run_each(
    train: Callable[..., Any],
    choices: Sequence[Mapping[str, Any]],
    folder: Path,
    jobs: int = -1,
    *,
    cells: str = ALL,
    **shared: Any,
) -> list[Any]:
    """Return `train(**choice, **shared)` for each choice, computing only what a folder lacks.

    The result of a training that `cells` leaves out, and the folder lacks, is None.

    Args:
        train: A function of a module; it returns plain data.
        choices: The settings in which the trainings differ.
        folder: Folder of the experiment; results are in its subfolder `cells`.
        jobs: Number of parallel trainings, of one thread each if it is not 1; -1 for one per core.
        cells: Shell pattern; only trainings whose file it matches are computed.
        **shared: Settings of all trainings.
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or (jobs < 1 and jobs != -1):
        raise ValueError(f"jobs: expected -1 or at least 1, received {jobs!r}.")
    check_folder("--out", folder)
    wanted = [{**shared, **choice} for choice in choices]
    paths = [folder / CELLS / f"{_name(choice, shared)}.json" for choice in choices]
    missing = [
        (settings, path)
        for settings, path in zip(wanted, paths, strict=True)
        if fnmatchcase(path.stem, cells) and not path.exists()
    ]
    found = sum(path.exists() for path in paths)
    if paths and not found and not missing:
        raise ValueError(
            f"--cells: expected a pattern of names like {paths[0].stem!r}, since no training run "
            f"is finished; received {cells!r}."
        )
    start = time.monotonic()
    for done, _ in enumerate(_computed(train, missing, jobs), 1):
        seconds = (time.monotonic() - start) / done * (len(missing) - done)
        left = f"{seconds / 60:.0f} min" if seconds > 120 else f"{seconds:.0f} s"
        sys.stdout.write(f"  [{found + done}/{len(paths)}] trainings done, about {left} left\n")
        sys.stdout.flush()
    return [_read(path) if path.exists() else None for path in paths]


def trained(choices: Sequence[Mapping[str, Any]], found: Sequence[Any]) -> str:
    """Return which trainings are finished, in words; empty if all are.

    Args:
        choices: The settings in which the trainings differ, `seed` among them.
        found: Their results; None for those that are not finished.
    """
    finished = [c for c, result in zip(choices, found, strict=True) if result is not None]
    if len(finished) == len(choices):
        return ""
    settings = (", ".join(str(v) for k, v in c.items() if k != "seed") for c in finished)
    counts = "; ".join(f"{name} ({count})" for name, count in Counter(settings).items() if name)
    seeds = f", with numbers of seeds: {counts}" if counts else ""
    return f"{len(finished)} of {len(choices)} training runs{seeds}"


def _computed(train: Callable[..., Any], missing: Sequence[Any], jobs: int) -> Any:
    if jobs == 1 or len(missing) < 2:
        return map(partial(_compute, train), *zip(*missing, strict=True)) if missing else ()
    try:
        import joblib
    except ModuleNotFoundError:
        raise ValueError(
            "parallel trainings need joblib: pip install 'tacit-torch[bench]', or pass --jobs 1"
        ) from None
    parallel = joblib.Parallel(
        jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs"
    )
    return parallel(joblib.delayed(_compute)(train, *each, threads=1) for each in missing)


def _compute(
    train: Callable[..., Any], settings: Mapping[str, Any], path: Path, threads: int | None = None
) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
    made_by, start = provenance(), time.monotonic()
    result = finite(train(**settings))
    path.parent.mkdir(parents=True, exist_ok=True)
    seconds = time.monotonic() - start
    found = {"settings": settings, **made_by, "seconds": seconds, "result": result}
    files.write_json(path, found)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())["result"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a result of a training: {error}; delete it.") from error


def _name(choice: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    """Return a name for the file: the choice in words, and a digest of the other settings."""
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:8]
    words = "-".join(str(value).replace(" ", "_").replace("=", "") for value in choice.values())
    return f"{words}-{digest}"


def finite(value: Any) -> Any:
    """Return results with None for numbers that are not finite, which JSON can't represent."""
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return checks.finite_or_none(value)
