"""Trained plain networks as files, for all methods that begin with one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from tacit._support import files

KEY = "tacit_network"


@dataclass
class NetworkCache:
    """Networks of one task: the same data, settings and seed.

    Args:
        folder: Where they are.
        seconds_saved: Seconds of training that cached networks have saved so far.
    """

    folder: Path
    seconds_saved: float = 0.0

    def load(self, net: nn.Module, member: int) -> bool:
        """Load a network's weights; return whether they were there."""
        path = self._path(member)
        if not path.exists():
            return False
        header, tensors = files.read(path, KEY, "tacit bench")
        files.check_fits(path, net.state_dict(), tensors)
        net.load_state_dict(tensors)
        self.seconds_saved += header["seconds"]
        return True

    def save(self, net: nn.Module, member: int, seconds: float) -> None:
        """Keep a network, with the seconds that it took."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files.write(self._path(member), KEY, {"seconds": seconds}, net.state_dict())

    def _path(self, member: int) -> Path:
        return self.folder / f"{member}.safetensors"
