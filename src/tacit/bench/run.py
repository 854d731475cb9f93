"""Running many cells: on all cores here, or on a cluster, each result kept when it is there."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit import _files
from tacit._provenance import provenance
from tacit.bench.cells import Cell, described, method_of
from tacit.bench.measure import measure


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
        backend: Of joblib: "loky" for processes here, "dask", "ray", "threading" and others.
        address: Of the cluster's scheduler, where the backend needs one.
        done: Called after each cell, with what went wrong, if anything.

    Returns:
        The cells that failed.

    Raises:
        ValueError: If the folder has results of other settings.
    """
    try:
        import joblib
    except ModuleNotFoundError:
        raise ValueError(
            "tacit bench: joblib is needed: pip install 'tacit-torch[bench]'"
        ) from None
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if not finished(cell, out)]
    networks = str((out / "networks").resolve()) if backend == "loky" else None
    made_by = provenance()  # now: the code may change while its processes run
    failed = []
    with _connected(backend, address), joblib.parallel_config(backend, n_jobs=jobs):
        parallel = joblib.Parallel(
            return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs"
        )
        for cell, result, problem in parallel(
            joblib.delayed(_attempt)(cell, networks, made_by, str(Path.cwd())) for cell in missing
        ):
            if result is None:
                failed.append(cell)
            else:
                _files.write_json(path_of(cell, out), result)
            if done is not None:
                done(cell, problem)
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
        ValueError: If there are none.
    """
    found = [read(path) for path in sorted(Path(out).glob("*.json"))]
    if not found:
        raise ValueError(f"{out}: there are no results of tacit bench.")
    return found


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
    if backend == "dask":
        from distributed import Client

        with Client(address):  # type: ignore[no-untyped-call]
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
