"""The most memory that was in use."""

from __future__ import annotations

import ctypes
import gc
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the most bytes in use since, beyond those at the beginning.

    Of the accelerator's memory where there is one, otherwise of the process's; NaN where the system
    doesn't tell (Linux does).
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield lambda: float(torch.cuda.max_memory_allocated() - before)
        return
    try:
        CLEAR.write_text("5")  # the peak starts anew
    except OSError:
        yield lambda: math.nan
        return
    _give_back()
    at_first = _kilobytes("VmRSS")
    yield lambda: 1024.0 * max(0, _kilobytes("VmHWM") - at_first)


def _give_back() -> None:
    """Give freed memory back to the system, so that it isn't used again unnoticed."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _kilobytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), flags=re.MULTILINE)
    return int(found[1]) if found else 0
