"""Randomness of an estimator: one seed, global generators left as they were."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

# Training seeds the global generators, so one thread at a time may use them.
_LOCK = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator, and restore those of torch, NumPy and Python afterwards."""
    with _LOCK, torch.random.fork_rng():
        states = random.getstate(), np.random.get_state()
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
