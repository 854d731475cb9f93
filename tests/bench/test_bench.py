import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from scipy import stats

import tacit
from tacit import _files, bench
from tacit.bench import Cell, Problem, grid, measure, results, run
from tacit.bench.cells import described
from tacit.bench.summary import estimate, p_value, within
from tacit.methods import ImplicitBiasVI, Method, Task

TINY = {"epochs": 4, "batch_size": 32, "train_size": 320, "test_size": 20, "samples": 2}
ONE = Cell("digits", "standard", **TINY)


def without_cost(path):
    found = json.loads(path.read_text())
    return {name: value for name, value in found.items() if name != "cost"}


def test_a_grid_has_the_first_seed_of_everything_first():
    cells = grid(["digits", "mnist"], ["standard", "swag"], ["sp", "mup"], seeds=2, epochs=3)
    assert len(cells) == 16
    assert [cell.seed for cell in cells] == [0] * 8 + [1] * 8
    assert len({cell.name for cell in cells}) == 16
    assert all(cell.epochs == 3 for cell in cells)
    assert len({cell.network for cell in cells[:4]}) == 4  # none is trained twice at a time
    assert len(grid(["digits", "digits"], ["standard"], ["sp"], seeds=1)) == 1


def test_the_learning_rate_is_the_problems_unless_given():
    assert ONE.lr == bench.PROBLEMS["digits"].lr["sp"]
    assert replace(ONE, lr=0.5).lr == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "nist"}, "data: expected one of digits, mnist"),
        ({"method": "magic"}, "method: expected one of standard"),
        ({"parametrization": "np"}, "parametrization: expected one of sp, mup"),
        ({"seed": -1}, "seed: expected an integer"),
        ({"epochs": 0}, "epochs: expected an integer"),
        ({"lr": 0.0}, "lr: expected a number above 0"),
        ({"test_size": 0}, "test_size: expected an integer"),
        ({"validation_size": 0}, "validation_size: expected an integer"),
    ],
)
def test_settings_that_cant_be_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(ONE, **change)


def test_what_a_cell_measures():
    found = measure(replace(ONE, method="implicit_bias_vi"))
    assert 0 <= found["test"]["accuracy"] <= 1
    assert found["threads"] >= 1
    assert found["averaging"].keys() == {"log_probs", "probs", "logits"}
    assert found["corrupted"].keys() == set(tacit.data.CORRUPTIONS["mnist"])
    assert found["cost"]["parameters"] > 61_706
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("method", bench.METHODS)
def test_every_method_runs_with_both_parametrizations(method):
    for parametrization in ("sp", "mup"):
        cell = Cell("digits", method, parametrization, **TINY)
        assert measure(cell)["test"]["nll"] is not None


def test_methods_share_plain_networks(tmp_path, monkeypatch):
    plain = measure(ONE, tmp_path)
    trained = []
    fit = Task.fit
    monkeypatch.setattr(
        Task, "fit", lambda self, *a, **k: (trained.append(k), fit(self, *a, **k))[1]
    )
    scaled = measure(replace(ONE, method="temperature_scaling"), tmp_path)
    assert not trained
    assert scaled["test"]["accuracy"] == plain["test"]["accuracy"]
    (path,) = tmp_path.glob("*/0.safetensors")
    took = _files.read(path, "tacit_network", "the bench")[0]["seconds"]
    assert scaled["cost"]["seconds"] > took > 0  # as if it had trained
    assert scaled["cost"]["peak_bytes"] is None  # not measured: it didn't train
    measure(replace(ONE, method="deep_ensemble"), tmp_path)
    assert [k["member"] for k in trained] == [1, 2, 3, 4]
    alone = measure(replace(ONE, method="temperature_scaling"))
    assert alone["test"] == scaled["test"]
    measure(replace(ONE, lr=0.01, method="temperature_scaling"), tmp_path)
    assert len(trained) == 6  # alone, and with another learning rate


def test_a_stopped_grid_goes_on(tmp_path):
    cells = grid(["digits"], ["standard", "swag"], ["sp"], seeds=2, **TINY)
    done = []
    assert not run(cells[:2], tmp_path, jobs=2, done=lambda cell, _: done.append(cell))
    before = [(tmp_path / f"{cell.name}.json").read_text() for cell in cells[:2]]
    assert not run(cells, tmp_path, jobs=2, done=lambda cell, _: done.append(cell))
    assert sorted(cell.name for cell in done) == sorted(cell.name for cell in cells)
    assert before == [(tmp_path / f"{cell.name}.json").read_text() for cell in cells[:2]]
    assert {found["cell"] for found in results(tmp_path)} == set(cells)


def test_results_of_other_settings_are_not_mixed(tmp_path):
    run([ONE], tmp_path, jobs=1)
    with pytest.raises(ValueError, match=r"other settings .*compared with \(lr\); choose another"):
        run([replace(ONE, lr=0.7)], tmp_path, jobs=1)
    with pytest.raises(ValueError, match=r"other settings .*\(epochs, train_size\)"):
        run([replace(ONE, method="swag", epochs=9, train_size=None)], tmp_path, jobs=1)
    assert [path.name for path in tmp_path.glob("*.json")] == [f"{ONE.name}.json"]


def test_results_of_a_method_with_other_settings_are_not_mixed(tmp_path, monkeypatch):
    run([ONE], tmp_path, jobs=1)
    monkeypatch.setitem(bench.METHODS, "standard", ImplicitBiasVI())
    with pytest.raises(ValueError, match="of other settings.*with Standard"):
        run([ONE], tmp_path, jobs=1)


def test_descriptions_are_the_same_in_every_process():
    assert described(ImplicitBiasVI(tacit.first_and_last)) == (
        "ImplicitBiasVI(where=first_and_last, rank=None, samples=1, draws=None, calibrated=True)"
    )
    method = ImplicitBiasVI(partial(tacit.every_layer, scale=0.25))
    assert "where=every_layer(scale=0.25)" in described(method)


def test_a_width_is_for_networks_that_have_one():
    assert replace(ONE, width=8).width is None
    assert Cell("cifar10", "standard", width=8).width == 8


def test_a_cell_that_fails_doesnt_end_the_others(tmp_path, monkeypatch):
    class Broken(Method):
        def learn(self, task):
            raise ArithmeticError("on purpose")

    monkeypatch.setitem(bench.METHODS, "swag", Broken())
    told = {}
    broken = replace(ONE, method="swag")
    failed = run([broken, ONE], tmp_path, jobs=1, done=lambda c, why: told.update({c: why}))
    assert failed == [broken]
    assert "ArithmeticError: on purpose" in told[broken]
    assert told[ONE] is None
    assert len(results(tmp_path)) == 1
    assert "on purpose" in (tmp_path / "digits-sp-swag-0.failed.txt").read_text()
    text = bench.write(results(tmp_path), tmp_path, "One failed")[1].read_text()
    assert "failed, and are missing below: digits-sp-swag-0." in text
    monkeypatch.undo()
    assert run([broken], tmp_path, jobs=1) == []
    assert not list(tmp_path.glob("*.failed.txt"))


def test_a_process_that_the_system_ends(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "from tacit.methods import Method\n"
        "class Ends(Method):\n"
        "    def learn(self, task):\n"
        "        os._exit(9)\n"
        "ends = Ends()\n"
    )
    code = (
        "from tacit.bench import grid, run\n"
        f"cells = grid(['digits'], ['standard', 'mine:ends'], ['sp'], 1, **{TINY})\n"
        "run(cells, 'out', jobs=2)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "ended by the system, perhaps for want of memory" in found.stderr


def test_a_problem_that_cant_be():
    with pytest.raises(ValueError, match=r"Problem\(kind\): expected None or one of .*mnist"):
        Problem(tacit.data.digits, tacit.models.LeNet5, {"sp": 0.1}, "stripes")


def test_images_that_cant_be_corrupted_are_found_before_training(monkeypatch):
    def small():
        return [tacit.data.Images(torch.zeros(9, 1, 8, 8, dtype=torch.uint8), torch.zeros(9))] * 3

    monkeypatch.setitem(bench.PROBLEMS, "digits", replace(bench.PROBLEMS["digits"], load=small))
    monkeypatch.setattr(Task, "fit", None)
    with pytest.raises(ValueError, match="corrupt: expected square images of at least 28 x 28"):
        measure(ONE)


def test_jobs_that_cant_be(tmp_path):
    with pytest.raises(ValueError, match="jobs: expected -1 or at least 1, received 0"):
        run([ONE], tmp_path, jobs=0)


def test_threads_are_refused(tmp_path):
    with pytest.raises(ValueError, match="threads would share their random numbers"):
        run([ONE], tmp_path, backend="threading")


def test_files_that_are_no_results(tmp_path):
    with pytest.raises(ValueError, match="there are no results"):
        results(tmp_path)
    (tmp_path / "other.json").write_text('{"cell": {"data": "digits", "colour": "red"}}')
    with pytest.raises(ValueError, match="other.json is not a result of tacit bench: unknown set"):
        results(tmp_path)
    (tmp_path / "other.json").write_text("{")
    with pytest.raises(ValueError, match="other.json is not a result"):
        results(tmp_path)


@pytest.mark.slow
def test_killed_and_started_again(tmp_path):
    def command(out):
        settings = [f"--{n.replace('_', '-')}={v}" for n, v in TINY.items()]
        return [
            sys.executable, "-m", "tacit", "bench", "run", "--data=digits", "--seeds=2",
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
        with pytest.raises(ProcessLookupError):  # workers end too
            os.killpg(process.pid, 0)
        assert len(list((tmp_path / kind.name).glob("*.json"))) < 6
    for name in ("SIGKILL", "SIGTERM", "undisturbed"):
        subprocess.run(command(tmp_path / name), check=True, capture_output=True)
    for path in tmp_path.glob("undisturbed/*.json"):
        for name in ("SIGKILL", "SIGTERM"):
            assert without_cost(path) == without_cost(tmp_path / name / path.name)
    assert len(list(tmp_path.glob("SIGTERM/*.json"))) == 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # distributed's own
def test_on_a_dask_cluster(tmp_path):
    distributed = pytest.importorskip("distributed")
    cells = grid(["digits"], ["standard", "implicit_bias_vi"], ["sp"], seeds=2, **TINY)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        run(cells, tmp_path / "dask", backend="dask", address=cluster.scheduler_address)
    with (
        distributed.LocalCluster(1, threads_per_worker=2, dashboard_address=None) as threads,
        pytest.raises(ValueError, match="start the workers with --nthreads 1"),
    ):
        run(cells, tmp_path / "threads", backend="dask", address=threads.scheduler_address)
    run(cells, tmp_path / "here", jobs=2)  # one thread each, as the workers of the cluster
    assert len(results(tmp_path / "dask")) == 4
    for path in (tmp_path / "here").glob("*.json"):
        assert without_cost(path) == without_cost(tmp_path / "dask" / path.name)


def test_an_address_needs_a_cluster(tmp_path):
    with pytest.raises(ValueError, match="'loky' has no scheduler"):
        run([ONE], tmp_path, address="tcp://127.0.0.1:1")


@pytest.mark.parametrize("freedom", range(1, 13))
@pytest.mark.parametrize("t", [0.0, 0.1, 1.0, 2.7, 40.0])
def test_students_t(t, freedom):
    assert within(t, freedom) == pytest.approx(1 - 2 * stats.t.sf(t, freedom), abs=1e-12)


def test_estimates_against_scipy():
    generator = torch.Generator().manual_seed(0)
    one, two = torch.randn(2, 5, generator=generator, dtype=torch.float64).tolist()
    found = estimate(dict(enumerate(one)), dict(enumerate(two)))
    assert found.mean == pytest.approx(sum(one) / 5)
    assert found.error == pytest.approx(stats.sem(one))
    assert found.p == pytest.approx(stats.ttest_rel(one, two).pvalue)
    assert found.difference == pytest.approx((sum(one) - sum(two)) / 5)
    # Only seeds that both have are compared.
    part = estimate(dict(enumerate(one)), {0: two[0], 3: two[3], 9: 1.0})
    pairs = [one[0], one[3]], [two[0], two[3]]
    assert part.p == pytest.approx(stats.ttest_rel(*pairs).pvalue)


def test_what_few_seeds_dont_tell():
    assert math.isnan(estimate({0: 1.0}).error)
    assert estimate({0: 1.0}, {0: 2.0}).p is None
    assert estimate({0: 1.0}, {1: 2.0}).difference is None
    assert p_value([0.0, 0.0]) == 1
    assert p_value([0.5, 0.5]) == 0
    assert math.isnan(estimate({0: 1.0, 1: math.nan}).mean)


def fake(method, seed, nll):
    three = {"nll": nll, "accuracy": 0.9, "ece": 0.01, "aurc": 0.02}
    return {
        "cell": Cell("mnist", method, "sp", seed),
        "method": method,
        "test": three,
        "corrupted": {"fog": three, "shear": {**three, "nll": 3 * nll}},
        "foreign": {"quickdraw": {"auroc": 1 - nll / 10}},
        "averaging": {"probs": three, "log_probs": {**three, "nll": 2 * nll}},
        "cost": {"seconds": 10.0 * nll, "parameters": 1000, "peak_bytes": None},
    }


FAKES = [
    fake(method, seed, nll + 0.001 * seed**2 * sign)
    for method, nll, sign in (
        ("implicit_bias_vi", 0.3, 1), ("standard", 0.4, -1), ("deep_ensemble", 0.2, -1),
        ("swag", 0.3, -1),
    )
    for seed in range(3)
]  # fmt: skip


def test_rows():
    rows = {row.method: row.numbers for row in bench.summarize(FAKES)}
    assert rows["standard"]["error"].mean == pytest.approx(10)
    assert rows["standard"]["corrupted_nll"].mean == pytest.approx(2 * rows["standard"]["nll"].mean)
    assert rows["standard"]["corrupted/shear/nll"].mean > 1
    assert rows["standard"]["nll"].p < 0.05 < rows["swag"]["nll"].p
    assert rows["implicit_bias_vi"]["nll"].p is None


def test_the_report(tmp_path):
    paths = bench.write(FAKES, tmp_path, "A title")
    assert [path.name for path in paths] == ["report.html", "report.md"]
    text = paths[1].read_text()
    assert text.startswith("# A title")
    lines = [line for line in text.splitlines() if line.startswith("| standard |")]
    assert "0.398 ± 0.001 ↓" in lines[0]  # worse in NLL
    assert "↑" in next(line for line in text.splitlines() if line.startswith("| deep_ensemble |"))
    assert "quickdraw" in text
    pictures = sorted(tmp_path.glob("*.png"))
    assert len(pictures) == 5
    assert all(f"({picture.name})" in text for picture in pictures)
    page = paths[0].read_text()
    assert page.count("<img") == 5
    assert "3 seeds" in page
    assert "| method | seeds | error, % |" in text
    assert "| method | log-probs | probs |" in text
    assert "paired t-test" in text


def test_the_report_of_what_there_is(tmp_path):
    run([ONE], tmp_path, jobs=1)
    text = bench.write(results(tmp_path), tmp_path, "One")[1].read_text()
    assert "| standard |" in text
    assert "nan" not in text
    assert "t-test" not in text  # there is nothing to compare with
    assert "1 seed;" in text


def test_a_problem_and_a_method_of_your_own(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from tacit import models\n"
        "from tacit.bench.problems import Problem, large_digits\n"
        "from tacit.methods import DeepEnsemble\n"
        "problem = Problem(large_digits, models.LeNet5, {'sp': 0.01})\n"
        "two, kind = DeepEnsemble(2), DeepEnsemble\n"
    )
    monkeypatch.chdir(tmp_path)
    cells = grid(["mine:problem"], ["standard", "mine:two"], ["sp"], seeds=1, **TINY)
    assert cells[0].lr == 0.01
    assert not run(cells, tmp_path / "out", jobs=2)
    assert (tmp_path / "out" / "mine.problem-sp-mine.two-0.json").exists()
    text = bench.write(results(tmp_path / "out"), tmp_path / "out", "Mine")[1].read_text()
    assert "| mine:two |" in text
    assert "Corrupted" not in text
    assert not (tmp_path / "out" / "networks").exists()  # of data that may change
    with pytest.raises(TypeError, match="data: expected a Problem, mine:two is DeepEnsemble"):
        Cell("mine:two", "standard")
    with pytest.raises(TypeError, match="method: expected a Method, mine:kind is .*; call it"):
        Cell("digits", "mine:kind")
    with pytest.raises(ValueError, match="lr: mine:problem has none for mup, only for sp"):
        Cell("mine:problem", "standard", "mup")
    with pytest.raises(ValueError, match="method: there is no module 'yours' here"):
        Cell("digits", "yours:method")
