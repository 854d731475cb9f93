"""A file cache of trained plain networks, shared by the methods that start from one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from tacit._support import files

KEY = "tacit_network"


@dataclass
class NetworkCache:
    """Cache of the trained networks of one task, with fixed data, settings and seed.

    Args:
        folder: Folder of the files.
        seconds_saved: Training time that the cache has saved so far.
    """

    folder: Path
    seconds_saved: float = 0.0

    def load(self, net: nn.Module, member: int) -> bool:
        """Load a member's weights into a network if cached; return whether they were."""
        path = self._path(member)
        if not path.exists():
            return False
        header, tensors = files.read(path, KEY, "tacit bench")
        files.check_fits(path, net.state_dict(), tensors)
        net.load_state_dict(tensors)
        self.seconds_saved += header["seconds"]
        return True

    def save(self, net: nn.Module, member: int, seconds: float) -> None:
        """Write a member's weights and its training time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files.write(self._path(member), KEY, {"seconds": seconds}, net.state_dict())

    def _path(self, member: int) -> Path:
        return self.folder / f"{member}.safetensors"
