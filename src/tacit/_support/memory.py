"""Peak memory."""

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
    """Yield a function that returns the peak number of bytes above the usage on entry.

    Measures CUDA memory if a device is available, otherwise the resident memory of the process;
    NaN on systems without Linux's /proc.
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield lambda: float(torch.cuda.max_memory_allocated() - before)
        return
    _trim_heap()  # before the peak is reset, so that freed pages do not count
    try:
        CLEAR.write_text("5")  # resets the peak, VmHWM
    except OSError:
        yield lambda: math.nan
        return
    before = _kilobytes("VmRSS")
    yield lambda: 1024.0 * max(0, _kilobytes("VmHWM") - before)


def _trim_heap() -> None:
    """Return freed memory to the system; reusing it would not show in the peak."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def _kilobytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), flags=re.MULTILINE)
    return int(found[1]) if found else 0
