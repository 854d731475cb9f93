"""Running many cells: on all cores here, or on a cluster, each result kept when it is there."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit import _files
from tacit._provenance import provenance
from tacit.bench.cells import Cell, check_alike, described, method_of
from tacit.bench.measure import measure

FAILED = ".failed.txt"  # the end of a file that says what went wrong


def run(
    cells: Sequence[Cell],
    out: str | Path,
    *,
    jobs: int = -1,
    backend: str = "loky",
    address: str | None = None,
    done: Callable[[Cell, str | None], None] | None = None,
) -> list[Cell]:
    """Run the cells that a folder has no result of yet, and write each result when it is there.

    So a stopped comparison goes on when it is started again. A cell that fails doesn't end the
    others. Plain networks are kept in the folder too, for all methods that begin with them.

    Args:
        cells: What to run.
        out: Folder of results: NAME.json for each cell.
        jobs: How many at a time; -1 for as many as there are cores.
        backend: Of joblib: "loky" for processes here, "dask", "ray" and others. Only here are plain
            networks kept; a cluster has as many jobs as workers.
        address: Of the cluster's scheduler, where the backend needs one.
        done: Called after each cell, with what went wrong, if anything.

    Returns:
        The cells that failed.

    Raises:
        ValueError: If the folder has results of other settings.
        ChildProcessError: If the system ended a process.
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or (jobs < 1 and jobs != -1):
        raise ValueError(f"jobs: expected -1 or at least 1, received {jobs!r}.")
    try:
        import joblib
    except ModuleNotFoundError:
        raise ValueError(
            "tacit bench: joblib is needed: pip install 'tacit-torch[bench]'"
        ) from None
    out = Path(out)
    check_alike([*cells, *(result["cell"] for result in _all(out))])
    missing = [cell for cell in cells if not finished(cell, out)]
    out.mkdir(parents=True, exist_ok=True)
    networks = str((out / "networks").resolve()) if backend == "loky" else None
    made_by = provenance()  # now: the code may change while its processes run
    failed = []
    with _connected(backend, address), joblib.parallel_config(backend, n_jobs=jobs):
        parallel = joblib.Parallel(
            return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs"
        )
        attempts = parallel(
            joblib.delayed(_attempt)(cell, networks, made_by, str(Path.cwd())) for cell in missing
        )
        try:
            for cell, result, problem in attempts:
                note = out / f"{cell.name}{FAILED}"
                if result is None:
                    failed.append(cell)
                    note.write_text(problem)
                else:
                    note.unlink(missing_ok=True)
                    _files.write_json(path_of(cell, out), result)
                if done is not None:
                    done(cell, problem)
        except BrokenProcessPool:
            raise ChildProcessError(
                "a process was ended by the system, perhaps for want of memory. What is done is "
                "kept: start again with fewer jobs."
            ) from None
    return failed


def path_of(cell: Cell, out: Path) -> Path:
    """Return the file of a cell's result."""
    return out / f"{cell.name}.json"


def finished(cell: Cell, out: Path) -> bool:
    """Return whether a folder has the result of a cell.

    Raises:
        ValueError: If it has one of other settings.
    """
    path = path_of(cell, out)
    if not path.exists():
        return False
    known = read(path)
    if (known["cell"], known["method"]) != (cell, described(method_of(cell))):
        raise ValueError(
            f"{path} is of other settings, {known['cell']} with {known['method']}; choose another "
            "folder or delete it."
        )
    return True


def read(path: Path) -> dict[str, Any]:
    """Return a result, with its `cell` as one.

    Raises:
        ValueError: If the file is not a result.
    """
    try:
        result: dict[str, Any] = json.loads(path.read_text())
        return {**result, "cell": Cell.read(result["cell"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a result of tacit bench: {error}.") from error


def results(out: str | Path) -> list[dict[str, Any]]:
    """Return all results of a folder.

    Raises:
        ValueError: If there are none, or if they can't be compared.
    """
    found = _all(Path(out))
    if not found:
        raise ValueError(f"{out}: there are no results of tacit bench.")
    check_alike(result["cell"] for result in found)
    return found


def failures(out: str | Path) -> list[str]:
    """Return the names of the cells that failed."""
    return sorted(path.name.removesuffix(FAILED) for path in Path(out).glob(f"*{FAILED}"))


def _all(out: Path) -> list[dict[str, Any]]:
    return [read(path) for path in sorted(out.glob("*.json"))]


def _attempt(
    cell: Cell, networks: str | None, made_by: dict[str, Any], here: str
) -> tuple[Cell, dict[str, Any] | None, str | None]:
    if here not in sys.path:  # a problem of the user's own may be there
        sys.path.insert(0, here)
    try:
        return cell, measure(cell, networks, made_by), None
    except Exception:  # the others may go well
        return cell, None, traceback.format_exc()


@contextmanager
def _connected(backend: str, address: str | None) -> Iterator[None]:
    """Connect to a cluster, where the backend is one."""
    if backend == "threading":
        raise ValueError("backend: trainings in threads would share their random numbers.")
    if backend == "dask":
        from distributed import Client

        settings = {"address": address} if address else {"threads_per_worker": 1}
        with Client(**settings) as client:  # type: ignore[no-untyped-call]
            if any(threads > 1 for threads in client.nthreads().values()):
                raise ValueError(
                    "backend: trainings in threads would share their random numbers; start the "
                    "workers with --nthreads 1."
                )
            yield
    elif backend == "ray":
        import ray
        from ray.util.joblib import register_ray

        ray.init(address=address)
        register_ray()
        yield
    elif address is not None:
        raise ValueError(f"address: the backend {backend!r} has no scheduler.")
    else:
        yield
