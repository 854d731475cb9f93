"""Checkpoints: one safetensors file with all that a run needs to resume bit for bit.

Tensors are stored as tensors; numbers and settings as JSON in the file's header. A file is written
under a temporary name and then renamed, so a checkpoint is never incomplete. The newest two are
kept. A folder belongs to one run at a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from tacit._support import files, schema

if TYPE_CHECKING:
    from lightning_fabric import Fabric

KEPT = 2  # number of checkpoints in a folder
KEY = "tacit_checkpoint"
LOCK = ".lock"  # held by the run that uses the folder

DRAWS = schema.word_or("each", schema.integer(1))
HEADER = schema.record(
    {
        "settings": schema.table_of(schema.anything),
        "epoch": schema.integer(0),
        "done": schema.integer(0),
        "draws": schema.optional(DRAWS),
        "loss_sum": schema.number(nan=True),
        "averaged": schema.integer(0),
        "history": schema.record(
            {"epochs": schema.list_of(schema.table_of(schema.anything)), "stopped": schema.text}
        ),
        "optimizer": schema.record(
            {
                "numbers": schema.table_of(schema.anything),
                "groups": schema.list_of(schema.table_of(schema.anything)),
            }
        ),
        "precision": schema.table_of(schema.anything),
        "random": schema.list_of(
            schema.record(
                {
                    "numpy": schema.list_of(schema.anything),
                    "python": schema.list_of(schema.anything),
                }
            )
        ),
    },
    more=True,
)
"""Entries of a checkpoint's header."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run: tensors by name and plain data."""

    tensors: Mapping[str, Tensor]
    data: Mapping[str, Any]


def write(folder: Path, step: int, checkpoint: Checkpoint, *, alone: bool = False) -> Path:
    """Write a checkpoint, then remove old ones.

    If the disk is full, existing checkpoints are kept, and the error says so.

    Args:
        folder: Folder of the checkpoints.
        step: Number of steps taken.
        checkpoint: The checkpoint.
        alone: Whether to remove all others: this is the first of a new run.

    Returns:
        The path of the file.
    """
    path = folder / f"step-{step:012d}.safetensors"
    files.write(path, KEY, {"step": step, **checkpoint.data}, checkpoint.tensors)
    others = [other for other in _found(folder) if other != path]
    older = [other for other in others if other.name < path.name]
    for old in others if alone else older[KEPT - 1 :]:
        old.unlink(missing_ok=True)
    return path


def acquire(folder: Path) -> FileLock:
    """Make the folder, lock it, and remove incomplete files of killed processes.

    The operating system releases the lock when the process ends, for whatever reason.

    Raises:
        RuntimeError: If another run is using the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RuntimeError(
            f"checkpoint: another run is using {folder}. Expected one run per folder at a time: "
            "wait until the other has ended, or use another folder."
        ) from None
    files.clean_stale(folder, ".step-")
    return lock


def read_newest(folder: Path) -> Checkpoint | None:
    """Return the newest readable checkpoint, or None if there are no checkpoints.

    Raises:
        ValueError: If there are checkpoints, but none is readable.
    """
    problems = []
    for path in _found(folder):
        found = _try(path)
        if isinstance(found, Checkpoint):
            return found
        problems.append(str(found))
    if problems:
        raise ValueError(
            f"checkpoint: no checkpoint in {folder} can be read: {' '.join(problems)} Use another "
            "folder, or resume='never' to start afresh."
        )
    return None


def _try(path: Path) -> Checkpoint | ValueError:
    try:
        return read(path)
    except ValueError as error:
        return error


def read(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        ValueError: If the file is truncated or damaged, or not a checkpoint of this version.
    """
    data, tensors = files.read(path, KEY, "tacit.fit")
    files.check_header(path, data, HEADER)
    if not data["random"]:
        raise ValueError(f"{path} is damaged: it has no random state.")
    for rank in range(len(data["random"])):
        for name in ("torch", "numpy", "python"):
            if f"random.{rank}.{name}" not in tensors:
                raise ValueError(f"{path} is damaged: the tensor random.{rank}.{name} is missing.")
    return Checkpoint(tensors, data)


def _found(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def optimizer_state(optimizer: torch.optim.Optimizer) -> Checkpoint:
    """Return the state of an optimizer as tensors and plain data."""
    state = optimizer.state_dict()
    tensors, numbers = {}, {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                numbers[f"{index}.{name}"] = value
    return Checkpoint(tensors, {"numbers": numbers, "groups": state["param_groups"]})


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: Checkpoint) -> None:
    """Load the result of `optimizer_state` into an optimizer."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**saved.data["numbers"], **saved.tensors}.items():
        index, _, name = key.partition(".")
        # Tensors from a file may be unaligned, which can change the last bit of a product.
        value = value.clone() if isinstance(value, Tensor) else value
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": saved.data["groups"]})


def random_state(device: torch.device) -> Checkpoint:
    """Return the state of all global random number generators: torch, NumPy, Python."""
    tensors = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    name, keys, *rest = np.random.get_state()
    tensors["numpy"] = torch.from_numpy(np.asarray(keys).astype(np.int64))
    version, numbers, gauss = random.getstate()
    tensors["python"] = torch.tensor(numbers, dtype=torch.int64)
    return Checkpoint(tensors, {"numpy": [name, *rest], "python": [version, gauss]})


def set_random_state(saved: Checkpoint, device: torch.device) -> None:
    """Restore the result of `random_state`."""
    torch.set_rng_state(saved.tensors["torch"])
    if device.type == "cuda" and "cuda" in saved.tensors:
        torch.cuda.set_rng_state(saved.tensors["cuda"], device)
    name, *rest = saved.data["numpy"]
    keys = saved.tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((name, keys, *rest))
    version, gauss = saved.data["python"]
    random.setstate((version, tuple(saved.tensors["python"].tolist()), gauss))


@contextmanager
def preserved_random_state(device: torch.device) -> Iterator[None]:
    """Restore the state of all global random number generators on exit."""
    state = random_state(device)
    try:
        yield
    finally:
        set_random_state(state, device)


@contextmanager
def locked(fabric: Fabric, folder: str | Path | None) -> Iterator[None]:
    """Keep other runs out of the checkpoint folder; the first process of a run holds the lock."""
    lock, problem = None, None
    if folder is not None and fabric.is_global_zero:
        try:
            lock = acquire(Path(folder))
        except Exception as error:  # any error: the other processes wait for a reply
            problem = error
    problem = fabric.broadcast(problem) if fabric.world_size > 1 else problem
    if problem is not None:
        raise problem
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
