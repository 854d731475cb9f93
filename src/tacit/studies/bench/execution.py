"""Execution of a grid: cells run in parallel, on this machine or on a cluster."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit._support import files
from tacit._support.provenance import provenance
from tacit.studies.bench.grid import Cell, check_comparable
from tacit.studies.bench.measurement import measure
from tacit.studies.bench.results import failure_path_of, is_finished, path_of, read_finished
from tacit.studies.folders import check_folder

UNFINISHED = "unfinished"  # subfolder of the checkpoints of trainings that have not ended


def run_cells(
    cells: Sequence[Cell],
    out: str | Path,
    *,
    jobs: int = -1,
    backend: str = "loky",
    address: str | None = None,
    done: Callable[[Cell, str | None], None] | None = None,
) -> list[Cell]:
    """Run the cells without a result in a folder; write each result as soon as it is known.

    An interrupted grid therefore resumes when it is started again, and so does the training that
    was interrupted, from its last epoch. A cell that fails does not stop the others. Plain networks
    are also saved in the folder, for all methods that start from them.

    Args:
        cells: Cells to run.
        out: Folder of results: NAME.json for each cell.
        jobs: Number of parallel processes; -1 for one per core.
        backend: Backend of joblib: "loky" for local processes, "dask", "ray" and others. Plain
            networks and checkpoints are saved with "loky" only; a cluster runs as many jobs as it
            has workers.
        address: Address of the cluster's scheduler, if the backend needs one.
        done: Called after each cell with its traceback, or with None if it succeeded.

    Returns:
        The cells that failed.

    Raises:
        ValueError: If the folder holds results with other settings, or can't be written to.
        ChildProcessError: If the operating system killed a process.

    Examples:
        >>> import tempfile
        >>> sizes = {"train_size": 64, "test_size": 10, "corrupted_size": 2}
        >>> cells = [Cell("digits", "standard", epochs=1, **sizes)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run_cells(cells, folder, jobs=1)  # none failed
        ...     [path.name for path in Path(folder).glob("*.json")]
        []
        ['digits-sp-standard-0.json']
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or (jobs < 1 and jobs != -1):
        raise ValueError(f"jobs: expected -1 or at least 1, received {jobs!r}.")
    try:
        import joblib
    except ModuleNotFoundError:
        raise ValueError("tacit bench needs joblib: pip install 'tacit-torch[bench]'") from None
    out = Path(out)
    check_folder("out", out)
    check_comparable([*cells, *(result["cell"] for result in read_finished(out))])
    missing = [cell for cell in cells if not is_finished(cell, out)]
    out.mkdir(parents=True, exist_ok=True)
    networks = str((out / "networks").resolve()) if backend == "loky" else None
    unfinished = str((out / UNFINISHED).resolve()) if backend == "loky" else None
    made_by = provenance()  # recorded first: the source may change while the processes run
    failed = []
    with _connected(backend, address), joblib.parallel_config(backend, n_jobs=jobs):
        parallel = joblib.Parallel(
            return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs"
        )
        attempts = parallel(
            joblib.delayed(_attempt)(cell, networks, unfinished, made_by, str(Path.cwd()))
            for cell in missing
        )
        try:
            for cell, result, problem in attempts:
                failure = failure_path_of(cell, out)
                if result is None:
                    failed.append(cell)
                    files.write_bytes(failure, problem.encode())
                else:
                    failure.unlink(missing_ok=True)
                    files.write_json(path_of(cell, out), result)
                    shutil.rmtree(out / UNFINISHED / cell.name, ignore_errors=True)
                if done is not None:
                    done(cell, problem)
        except BrokenProcessPool:
            raise ChildProcessError(
                "the operating system killed a process, possibly for lack of memory. Finished "
                "results are saved: start again with fewer jobs."
            ) from None
    return failed


def _attempt(
    cell: Cell, networks: str | None, unfinished: str | None, made_by: dict[str, Any], here: str
) -> tuple[Cell, dict[str, Any] | None, str | None]:
    """Return a cell with its result or, if it failed, its traceback."""
    os.environ.pop("SLURM_STEP_NUM_TASKS", None)  # workers that srun started train on their own
    # Only cells that name user code may import from the current folder, whose files could shadow
    # installed packages.
    own = ":" in cell.data or ":" in cell.method
    if own and here not in sys.path:
        sys.path.insert(0, here)
    try:
        checkpoint = None if unfinished is None else Path(unfinished) / cell.name
        return cell, measure(cell, networks, made_by, checkpoint), None
    except Exception:  # other cells may succeed
        return cell, None, traceback.format_exc()


@contextmanager
def _connected(backend: str, address: str | None) -> Iterator[None]:
    """Connect to the cluster, if the backend is one."""
    if backend == "threading":
        raise ValueError("backend: training runs in threads would share their random numbers.")
    if backend == "dask":
        from distributed import Client

        settings = {"address": address} if address else {"threads_per_worker": 1}
        with Client(**settings) as client:  # type: ignore[no-untyped-call]
            if any(threads > 1 for threads in client.nthreads().values()):
                raise ValueError(
                    "backend: training runs in threads would share their random numbers; start the "
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
