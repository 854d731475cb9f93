"""Training in separate processes: killed at random moments, distributed over two, under SLURM."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from tacit.training.processes import make_fabric, started_processes

WORKER = str(Path(__file__).parent / "worker.py")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def command(processes, *arguments):
    if processes == 1:
        return [sys.executable, WORKER, *map(str, arguments)]
    port = free_port()
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    return [sys.executable, *launcher, f"--master-port={port}", WORKER, *map(str, arguments)]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


ABORTED = "terminate called without an active exception"  # by gloo, as a process exits


def finish(processes, *arguments):
    for _ in range(2):
        done = subprocess.run(
            command(processes, *arguments), env=environment(), capture_output=True, text=True
        )
        if ABORTED not in done.stderr:
            break
    assert done.returncode == 0, done.stderr


def descendants(pid):
    """Return the ids of a process and of all its descendants, in whatever process group."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    found = [pid]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def kill_after(seconds, processes, *arguments):
    """Start a run and kill all its processes after a while; return whether it was still running."""
    process = subprocess.Popen(
        command(processes, *arguments),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    process.stdout.readline()  # training begins
    time.sleep(seconds)
    running = process.poll() is None
    for pid in descendants(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return running and not Path(arguments[1]).exists()


def load(path):
    return torch.load(path, weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "kills"), [(1, 5), (2, 2)])
def test_a_killed_run_resumes_with_the_same_bits(processes, kills, tmp_path):
    epochs, delay = 12, 0.005 * processes
    finish(processes, "-", tmp_path / "whole.pt", epochs, "variational", 0)
    chance, killed = random.Random(processes), 0
    arguments = (tmp_path / "run", tmp_path / "parts.pt", epochs, "variational", delay)
    for _ in range(kills):
        killed += kill_after(chance.uniform(0.2, 1.5), processes, *arguments)
    finish(processes, *arguments)
    assert killed >= 2
    whole, parts = load(tmp_path / "whole.pt"), load(tmp_path / "parts.pt")
    for name, tensor in whole.items():
        assert_close(parts[name], tensor, rtol=0, atol=0)


@pytest.mark.slow
def test_two_processes_give_the_result_of_one(tmp_path):
    """Without random weights, the gradient is the mean over the whole batch in both cases."""
    for processes in (1, 2):
        # 64 examples in batches of 15: neither full batches nor the last are divisible by two.
        finish(processes, "-", tmp_path / f"{processes}.pt", 3, "plain", 0, 15)
    one, two = (load(tmp_path / f"{processes}.pt") for processes in (1, 2))
    for name, tensor in one.items():
        assert_close(two[name], tensor, rtol=1e-5, atol=1e-6)


def finish_on_two_machines(folder, out, epochs, again=True):
    """Run one launcher per machine; the second machine has no checkpoint on its disk."""
    port, started = free_port(), []
    for rank in (0, 1):
        where = "-" if folder is None else folder / f"machine-{rank}"
        launcher = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        place = [f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}"]
        arguments = [where, f"{out}.{rank}", epochs, "variational", 0]
        started.append(
            subprocess.Popen(
                [sys.executable, *launcher, *place, WORKER, *map(str, arguments)],
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    errors = [process.communicate(timeout=300)[1] for process in started]
    if again and any(ABORTED in each for each in errors):
        finish_on_two_machines(folder, out, epochs, again=False)
        return
    assert all(process.returncode == 0 for process in started), "\n".join(errors)


@pytest.mark.slow
def test_two_machines_without_a_shared_disk_resume_with_the_same_bits(tmp_path):
    finish_on_two_machines(None, tmp_path / "whole", 4)
    for epochs in (2, 4):
        finish_on_two_machines(tmp_path, tmp_path / "parts", epochs)
    assert not (tmp_path / "machine-1").exists()
    whole = load(tmp_path / "whole.0")
    for other in ("whole.1", "parts.0", "parts.1"):
        for name, tensor in load(tmp_path / other).items():
            assert_close(tensor, whole[name], rtol=0, atol=0)


# What torchrun and SLURM 22.05 set, for two processes on each of two machines.
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}
JOB = {"SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
STEP = {**JOB, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (TORCHRUN, (2, 2)),
        ({**STEP, "SLURM_NTASKS_PER_NODE": "2"}, (2, 2)),
        ({**STEP, "SLURM_NTASKS_PER_NODE": "2", **TORCHRUN, "WORLD_SIZE": "2"}, (2, 1)),
        (JOB, None),  # the script of a job
        ({**JOB, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}, None),
    ],
)
def test_processes_that_others_started_are_counted(environment, expected):
    assert started_processes(environment) == expected


@pytest.mark.parametrize("each", [{}, {"SLURM_NTASKS_PER_NODE": "3"}])
def test_processes_of_srun_are_divided_equally(each):
    with pytest.raises(ValueError, match="started 4 processes on 2 machines; .*--ntasks-per-node"):
        started_processes({**STEP, **each})


def test_the_script_of_a_slurm_job_trains_alone(monkeypatch):
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    assert make_fabric("cpu", 1, "auto", "32-true").world_size == 1


def test_srun_that_is_installed_but_not_used_is_not_warned_of(monkeypatch, tmp_path):
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert make_fabric("cpu", 1, "auto", "32-true").world_size == 1


@pytest.mark.slow
def test_processes_of_srun_train_together(tmp_path):
    """As two processes of torchrun do; the variables are those that srun sets."""
    finish(2, "-", tmp_path / "torchrun.pt", 3, "variational", 0)
    step = {"SLURM_NTASKS": "2", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "1"}
    step |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_LOCALID": "0"}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    outs = [tmp_path / f"{rank}.pt" for rank in (0, 1)]
    started = [
        subprocess.Popen(
            [sys.executable, WORKER, "-", str(out), "3", "variational"],
            env={**environment(), **step, **place, "SLURM_PROCID": rank, "SLURM_NODEID": rank},
            stdout=subprocess.DEVNULL,
        )
        for rank, out in zip("01", outs, strict=True)
    ]
    for process in started:
        process.wait(timeout=300)
    for out in outs:
        for name, tensor in load(tmp_path / "torchrun.pt").items():
            assert_close(load(out)[name], tensor, rtol=0, atol=0)
