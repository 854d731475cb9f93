"""Checks of an environment, and of a model before a long training run."""

from __future__ import annotations

import copy
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from tacit.calling import Variational
from tacit.studies.supervision import Data, check_pair, loss_for

PACKAGES = ("torch", "lightning-fabric", "safetensors", "numpy", "scikit-learn", "matplotlib")
COLLAPSED, EXPLODED = 1e-4, 10.0  # bounds on the standard deviation relative to the mean weights

DDP = """
import torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
    dist.destroy_process_group()
if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder + "/store",), nprocs=2)
"""
COMPILE = """
import torch
f = torch.compile(lambda x: (x.sin() + 1).sum(), fullgraph=True)
f(torch.ones(3, requires_grad=True)).backward()
"""


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis.

    Args:
        what: Subject of the check.
        found: Result of the check.
        verdict: "ok", "note" if it may matter, or "problem".
        advice: Recommended action; empty if none.
    """

    what: str
    found: str
    verdict: Literal["ok", "note", "problem"] = "ok"
    advice: str = ""


def environment(*, trials: bool = True) -> Iterator[Finding]:
    """Yield versions, devices and threads, and whether torch.compile and multiprocessing work.

    Args:
        trials: Whether to try torch.compile and two processes, which takes several seconds.
    """
    yield Finding("python", f"{platform.python_version()} on {platform.machine()}")
    for package in PACKAGES:
        yield _package(package)
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield Finding("devices", ", ".join(devices) or "CPU only")
    yield Finding("threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores")
    if trials:
        yield _trial("torch.compile", COMPILE, "install a C++ compiler, or train uncompiled")
        yield _trial("two processes (gloo)", DDP, "train in a single process on this machine")


def _package(name: str) -> Finding:
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        optional = name in ("scikit-learn", "matplotlib")
        return Finding(name, "missing", "note" if optional else "problem", f"pip install {name}")


def _trial(what: str, code: str, advice: str) -> Finding:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trial.py"  # a file, since spawned processes import the main module
        path.write_text(code)
        try:
            done = subprocess.run(
                [sys.executable, path], capture_output=True, text=True, timeout=120, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Finding(what, str(error), "note", advice)
    if done.returncode == 0:
        return Finding(what, "works")
    lines = done.stderr.strip().splitlines()
    return Finding(what, lines[-1] if lines else "failed", "note", advice)


def diagnose(
    model: Variational, data: Data | None = None, *, lr: float | None = None
) -> list[Finding]:
    """Check the memory of a training step, the variances of the weights and the gradient noise.

    The model and torch's global random state are not changed.

    Args:
        model: A variational model.
        data: A batch of inputs and targets; without it, the gradient noise is not checked.
        lr: Planned learning rate, quoted in the advice.

    Returns:
        One finding for the memory, one per weight distribution, and one for the gradient noise.

    Raises:
        TypeError: If the model is not variational.
    """
    if not isinstance(model, Variational):
        raise TypeError(f"diagnose: expected a variational model, received {type(model).__name__}.")
    findings = [_memory(model), *_variances(model)]
    if data is not None:
        findings.append(_gradient_noise(model, check_pair("data", data), lr))
    return findings


def _memory(model: Variational) -> Finding:
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    counts = model.parameter_counts()
    return Finding(
        "memory per step",
        f"{3 * size / 2**20:,.1f} MiB for {counts['total']:,} parameters, their gradients and "
        "momentum, without activations",
    )


def _variances(model: Variational) -> Iterator[Finding]:
    for label, distribution in model.distributions.items():
        count = sum(mean.numel() for mean in distribution.mean.values())
        std = math.sqrt(distribution.trace().item() / count)
        size = distribution.dense_mean().square().mean().sqrt().item()
        ratio = std / size if size else math.inf
        text = f"RMS standard deviation {std:.3g}, RMS mean {size:.3g}"
        if not math.isfinite(std):
            advice = "the covariance factors are not finite: lower the learning rate"
            yield Finding(label, text, "problem", advice)
        elif ratio < COLLAPSED:
            yield Finding(label, text, "problem", "collapsed: the weights are almost deterministic")
        elif size and ratio > EXPLODED:
            advice = "far above the mean weights: lower scale= or the learning rate"
            yield Finding(label, text, "problem", advice)
        else:
            yield Finding(label, text)


def _gradient_noise(model: Variational, data: Data, lr: float | None, draws: int = 8) -> Finding:
    """Compare the gradient's noise over draws of the weights with the gradient itself.

    Uses a copy: the model's modes and running statistics are unchanged, and `tacit.SGD`, which
    would use the gradients in its next step, does not train the copy.
    """
    model = copy.deepcopy(model).train()
    loss = model.likelihood.loss if model.likelihood is not None else loss_for(data[1])
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = []
    with torch.random.fork_rng():
        for _ in range(draws):
            value = loss(model(data[0]), data[1])
            found = torch.autograd.grad(value, parameters, allow_unused=True)
            gradients.append(torch.cat([g.flatten() for g in found if g is not None]))
    return _noise_finding(torch.stack(gradients), lr, single=model.draws == 1)


def _noise_finding(gradients: Tensor, lr: float | None, *, single: bool) -> Finding:
    variance = gradients.var(0).sum().item()
    # The squared norm of the mean over draws is biased upwards by variance / draws.
    squared = gradients.mean(0).square().sum().item() - variance / len(gradients)
    noise, mean = math.sqrt(variance), math.sqrt(max(0.0, squared))
    text = f"noise norm {noise:.3g} over draws of the weights, gradient norm {mean:.3g}"
    if not math.isfinite(noise):
        return Finding("gradient noise", text, "problem", "the loss or its gradient is not finite")
    if noise > 3 * mean:
        rate = "a smaller learning rate" if lr is None else f"a learning rate below {lr:g}"
        more = ", or draws=8" if single else ""
        advice = f"noise dominates the gradient: use {rate}{more}"
        return Finding("gradient noise", text, "note", advice)
    return Finding("gradient noise", text)
