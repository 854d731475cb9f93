"""What benchmarks keep: where they ran, and their numbers in a file."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Return what a reader needs to know about the machine."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def save(path: Path, **results: Any) -> None:
    """Write results as JSON, with the environment and the arguments of the run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = {"arguments": sys.argv[1:], "environment": environment(), **results}
    path.write_text(json.dumps(saved, indent=2) + "\n")
