import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from tiny_cells import ONE, TINY, without_cost

from tacit.methods import Method
from tacit.studies.bench import (
    METHODS,
    Cell,
    execution,
    make_grid,
    measure,
    read_results,
    run_cells,
    write_report,
)
from tacit.training.processes import started_processes


def test_an_interrupted_grid_resumes(tmp_path):
    cells = make_grid(["digits"], ["standard", "swag"], ["sp"], seeds=2, **TINY)
    done = []
    assert not run_cells(cells[:2], tmp_path, jobs=2, done=lambda cell, _: done.append(cell))
    before = [(tmp_path / f"{cell.name}.json").read_text() for cell in cells[:2]]
    assert not run_cells(cells, tmp_path, jobs=2, done=lambda cell, _: done.append(cell))
    assert sorted(cell.name for cell in done) == sorted(cell.name for cell in cells)
    assert before == [(tmp_path / f"{cell.name}.json").read_text() for cell in cells[:2]]
    assert {found["cell"] for found in read_results(tmp_path)} == set(cells)


def test_a_failed_cell_does_not_stop_the_others(tmp_path, monkeypatch):
    class Broken(Method):
        def learn(self, task):
            raise ArithmeticError("on purpose")

    monkeypatch.setitem(METHODS, "swag", Broken())
    told = {}
    broken = replace(ONE, method="swag")
    failed = run_cells([broken, ONE], tmp_path, jobs=1, done=lambda c, why: told.update({c: why}))
    assert failed == [broken]
    assert "ArithmeticError: on purpose" in told[broken]
    assert told[ONE] is None
    assert len(read_results(tmp_path)) == 1
    assert "on purpose" in (tmp_path / "digits-sp-swag-0.failed.txt").read_text()
    text = write_report(read_results(tmp_path), tmp_path, "One failed")[1].read_text()
    assert "Failed training runs, missing below: digits-sp-swag-0." in text
    monkeypatch.undo()
    assert run_cells([broken], tmp_path, jobs=1) == []
    assert not list(tmp_path.glob("*.failed.txt"))


def test_a_killed_process(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "from tacit.methods import Method\n"
        "class Ends(Method):\n"
        "    def learn(self, task):\n"
        "        os._exit(9)\n"
        "ends = Ends()\n"
    )
    code = (
        "from tacit.studies.bench import make_grid, run_cells\n"
        f"cells = make_grid(['digits'], ['standard', 'mine:ends'], ['sp'], 1, **{TINY})\n"
        "run_cells(cells, 'out', jobs=2)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "the operating system killed a process, possibly for lack of memory" in found.stderr


def test_invalid_jobs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="jobs: expected -1 or at least 1, received 0"):
        run_cells([ONE], tmp_path, jobs=0)


def test_joblib_is_needed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(ValueError, match=r"needs joblib: pip install 'tacit-torch\[bench\]'"):
        run_cells([ONE], tmp_path)


def test_threads_are_refused(tmp_path):
    with pytest.raises(ValueError, match="threads would share their random numbers"):
        run_cells([ONE], tmp_path, backend="threading")


def test_an_interrupted_training_resumes_within_its_cell(tmp_path):
    cell = replace(ONE, method="implicit_bias_vi")
    (tmp_path / "here").mkdir()
    checkpoint = tmp_path / "here" / execution.UNFINISHED / cell.name

    measure(replace(cell, epochs=1), None, {}, checkpoint)  # more epochs extend a run
    before = sorted(checkpoint.iterdir())
    assert before
    assert not run_cells([cell], tmp_path / "here", jobs=1)
    assert not checkpoint.exists()  # removed when the result is written
    assert not run_cells([cell], tmp_path / "there", jobs=1)
    first, second = (without_cost(tmp_path / n / f"{cell.name}.json") for n in ("here", "there"))
    # Parameters are settled at the end of a run, so one that is extended differs by rounding.
    assert first["test"]["nll"] == pytest.approx(second["test"]["nll"], rel=1e-6)


@pytest.mark.slow
def test_a_killed_grid_resumes(tmp_path):
    def command(out):
        settings = [f"--{n.replace('_', '-')}={v}" for n, v in TINY.items()]
        return [
            sys.executable, "-m", "tacit", "bench", "run", "--data=digits", "--seeds=1",
            "--methods=standard,temperature_scaling,swag", "--parametrization=sp", "--jobs=1",
            f"--out={out}", *settings,
        ]  # fmt: skip

    for kind in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen(command(tmp_path / kind.name), start_new_session=True)
        while not list((tmp_path / kind.name).glob("*.json")):
            assert process.poll() is None
            time.sleep(0.02)
        if kind == signal.SIGKILL:
            os.killpg(process.pid, kind)
        else:
            process.send_signal(kind)
        process.wait()
        time.sleep(2)
        with pytest.raises(ProcessLookupError):  # the workers end too
            os.killpg(process.pid, 0)
        assert len(list((tmp_path / kind.name).glob("*.json"))) < 3
    for name in ("SIGKILL", "SIGTERM", "undisturbed"):
        subprocess.run(command(tmp_path / name), check=True, capture_output=True)
    for path in tmp_path.glob("undisturbed/*.json"):
        for name in ("SIGKILL", "SIGTERM"):
            assert without_cost(path) == without_cost(tmp_path / name / path.name)
    assert len(list(tmp_path.glob("SIGTERM/*.json"))) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # distributed's own
def test_on_a_dask_cluster(tmp_path):
    distributed = pytest.importorskip("distributed")
    cells = make_grid(["digits"], ["standard", "implicit_bias_vi"], ["sp"], seeds=1, **TINY)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        run_cells(cells, tmp_path / "dask", backend="dask", address=cluster.scheduler_address)
    with (
        distributed.LocalCluster(1, threads_per_worker=2, dashboard_address=None) as threads,
        pytest.raises(ValueError, match="start the workers with --nthreads 1"),
    ):
        run_cells(cells, tmp_path / "threads", backend="dask", address=threads.scheduler_address)
    run_cells(
        cells, tmp_path / "here", jobs=2
    )  # one thread per process, like the cluster's workers
    assert len(read_results(tmp_path / "dask")) == 2
    for path in (tmp_path / "here").glob("*.json"):
        assert without_cost(path) == without_cost(tmp_path / "dask" / path.name)


def test_an_address_needs_a_cluster(tmp_path):
    with pytest.raises(ValueError, match="'loky' has no scheduler"):
        run_cells([ONE], tmp_path, address="tcp://127.0.0.1:1")


def test_a_problem_and_a_method_of_your_own(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from tacit import models\n"
        "from tacit.studies.bench.problems import Problem, large_digits\n"
        "from tacit.methods import DeepEnsemble\n"
        "problem = Problem(large_digits, models.LeNet5, {'sp': 0.01})\n"
        "two, kind = DeepEnsemble(2), DeepEnsemble\n"
    )
    monkeypatch.chdir(tmp_path)
    cells = make_grid(["mine:problem"], ["standard", "mine:two"], ["sp"], seeds=1, **TINY)
    assert cells[0].lr == 0.01
    assert not run_cells(cells, tmp_path / "out", jobs=2)
    assert (tmp_path / "out" / "mine.problem-sp-mine.two-0.json").exists()
    text = write_report(read_results(tmp_path / "out"), tmp_path / "out", "Mine")[1].read_text()
    assert "| mine:two |" in text
    assert "Corrupted" not in text
    assert not (
        tmp_path / "out" / "networks"
    ).exists()  # networks are not saved, since the data may change
    with pytest.raises(TypeError, match="data: expected a Problem, mine:two is DeepEnsemble"):
        Cell("mine:two", "standard")
    with pytest.raises(TypeError, match="method: expected a Method, mine:kind is .*; call it"):
        Cell("digits", "mine:kind")
    with pytest.raises(
        ValueError, match="lr: mine:problem has no default for mup, only for sp; pass lr"
    ):
        Cell("mine:problem", "standard", "mup")
    with pytest.raises(ValueError, match="method: there is no module 'yours' here"):
        Cell("digits", "yours:method")


@pytest.mark.parametrize(("method", "added"), [("standard", False), ("mine:method", True)])
def test_only_cells_of_the_users_own_import_from_the_current_folder(
    method, added, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(execution, "measure", lambda *arguments: {"path": list(sys.path)})
    cell = Cell.read({"data": "digits", "method": method})
    _, result, _ = execution._attempt(cell, None, None, {}, str(tmp_path))
    assert (str(tmp_path) in result["path"]) == added


def test_workers_that_srun_started_train_on_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setattr(execution, "measure", lambda *_: {"started": started_processes(os.environ)})
    _, result, problem = execution._attempt(
        Cell("digits", "standard"), None, None, {}, str(tmp_path)
    )
    assert (result, problem) == ({"started": None}, None)
