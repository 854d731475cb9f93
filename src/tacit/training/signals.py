"""Ctrl-C and SIGTERM stop training after the current step rather than within it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """Whether a signal has requested a stop, and which one."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __call__(self) -> bool:
        """Return whether a stop was requested."""
        return self.number is not None

    def exit(self, message: str) -> None:
        """Print a message and end the program, as the signal would have done.

        Raises:
            SystemExit: After SIGTERM.
            KeyboardInterrupt: Otherwise.
        """
        sys.stderr.write(f"tacit: {message}\n")
        if self.number == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt(message)


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """Yield a flag that the first Ctrl-C or SIGTERM sets; a second one has its usual effect.

    Python handles signals in the main thread only; in other threads this does nothing.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[int, Any] = {}

    def request(number: int, _: Any) -> None:
        stop.number = number
        signal.signal(number, before[number])

    for kind in (signal.SIGINT, signal.SIGTERM):
        before[kind] = signal.signal(kind, request)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
