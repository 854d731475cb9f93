"""Randomness of an estimator: one seed, global generators left as they were, held-out rows."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

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


def split(groups: NDArray[np.int64], fraction: float, least: int, seed: int) -> NDArray[np.bool_]:
    """Return which rows to hold out: about the same fraction of each group.

    The last row of a group is never held out.

    Args:
        groups: Group of each row, (B,), from 0.
        fraction: Fraction of the rows.
        least: Rows to hold out at least, as long as these are at most a quarter.
        seed: Random seed.
    """
    count = max(round(fraction * len(groups)), min(least, len(groups) // 4), 1)
    order = np.random.default_rng(seed).permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    sizes = np.bincount(groups)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its group
    size = np.repeat(sizes, sizes)
    # The share of its group that is held out with it: groups take turns in proportion to size.
    share = np.where(rank < size - 1, (rank + 0.5) / size, np.inf)
    chosen = np.argsort(share, kind="stable")[:count]
    held_out = np.zeros(len(groups), dtype=bool)
    held_out[order[chosen[np.isfinite(share[chosen])]]] = True
    return held_out
