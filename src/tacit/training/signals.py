"""Ctrl-C and SIGTERM ask to stop after the step, instead of in the middle of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether to stop. A second signal acts as it did before.

    Signals can be handled in the main thread only; elsewhere nothing changes.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before: dict[int, Any] = {}

    def ask(number: int, _: Any) -> None:
        asked.set()
        signal.signal(number, before[number])

    for kind in (signal.SIGINT, signal.SIGTERM):
        before[kind] = signal.signal(kind, ask)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
