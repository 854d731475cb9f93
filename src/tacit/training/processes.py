"""Processes that train together: Fabric's own, or those started by torchrun or SLURM's srun."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def make_fabric(accelerator: str, devices: int | str, strategy: str, precision: str) -> Fabric:
    """Return Fabric, launched if there are several processes.

    Raises:
        ValueError: If srun's processes are not divided equally among machines.
    """
    from lightning_fabric import Fabric  # its import takes longer than all of tacit's
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment

    devices = int(devices) if isinstance(devices, Integral) else devices
    started, nodes = started_processes(os.environ), 1
    settings: dict[str, Any] = {"accelerator": accelerator, "precision": precision}
    if started is not None:
        devices, nodes = started
        strategy = "ddp" if strategy == "auto" else strategy
    elif "SLURM_NTASKS" in os.environ or shutil.which("srun"):
        # Fabric would take a job for its processes, and warn where srun is installed but not used.
        settings["plugins"] = LightningEnvironment()
    fabric = Fabric(**settings, devices=devices, num_nodes=nodes, strategy=strategy)
    if fabric.world_size > 1 or started is not None:
        fabric.launch()
    return fabric


def started_processes(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the number of processes on each machine and of machines, None if this one is alone.

    Args:
        environment: Environment variables.

    Raises:
        ValueError: If srun's processes are not divided equally among machines.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        each = int(environment["LOCAL_WORLD_SIZE"])
        return each, int(environment["WORLD_SIZE"]) // each
    # Those of a step, which srun starts: the script of a job is one process, whatever its size.
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks == 1:
        return None
    nodes = int(environment["SLURM_STEP_NUM_NODES"])
    each = int(environment.get("SLURM_NTASKS_PER_NODE", 0))
    if each * nodes != tasks:
        raise ValueError(
            f"srun started {tasks} processes on {nodes} machines; expected as many on each, as "
            "--ntasks-per-node gives them. For trainings that are independent of each other, use "
            "a job array (sbatch --array) instead of several tasks."
        )
    return each, nodes
