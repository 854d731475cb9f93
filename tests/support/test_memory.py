import math

import pytest
import torch

from tacit._support import memory
from tacit._support.memory import peak_memory

linux = pytest.mark.skipif(not memory.CLEAR.exists(), reason="needs Linux's /proc")


@linux
@pytest.mark.skipif(torch.cuda.is_available(), reason="measures memory of the GPU there")
def test_the_peak_counts_what_was_freed_before_the_end():
    with peak_memory() as peak:
        assert peak() < 20e6
        big = torch.ones(25_000_000)  # 100 MB
        del big
        assert 90e6 < peak() < 300e6
    with peak_memory() as peak:
        assert peak() < 20e6  # counted from the usage on entry


@linux
@pytest.mark.skipif(torch.cuda.is_available(), reason="measures memory of the GPU there")
def test_freed_memory_that_the_heap_still_holds_is_not_counted():
    pieces = [bytes(100_000) for _ in range(1_000)]  # 100 MB in pieces too small for mmap
    del pieces[:-1]  # the last piece keeps the heap from shrinking by itself
    with peak_memory() as peak:
        assert peak() < 20e6


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures memory of the GPU there")
def test_unknown_without_proc(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "CLEAR", tmp_path / "missing" / "clear_refs")
    with peak_memory() as peak:
        assert math.isnan(peak())
