"""Ctrl-C and SIGTERM ask to stop after the step, instead of in the middle of it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """Whether a signal has asked to stop, and which."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.number is not None

    def go(self, message: str) -> None:
        """Do what the signal asked for, now that everything is in order: end the program."""
        sys.stderr.write(f"tacit: {message}\n")
        if self.number == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt(message)


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """Yield what tells whether to stop. A second signal acts as it did before.

    Signals can be handled in the main thread only; elsewhere nothing changes.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[int, Any] = {}

    def ask(number: int, _: Any) -> None:
        stop.number = number
        signal.signal(number, before[number])

    for kind in (signal.SIGINT, signal.SIGTERM):
        before[kind] = signal.signal(kind, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
