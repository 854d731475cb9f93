"""Sources of data: official hosts, and package registries, which many proxies let through."""

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
    """A source of the files of a dataset."""

    @property
    @abstractmethod
    def command(self) -> str:
        """Shell command that fetches the same files."""

    @property
    @abstractmethod
    def checked(self) -> bool:
        """Whether the digests of all files are known and checked by `fetch`."""

    @abstractmethod
    def fetch(self, folder: Path) -> list[Path]:
        """Fetch the files that a folder doesn't have yet; return the paths of all files.

        Args:
            folder: Folder of this source only: files of other datasets may have the same names.

        Raises:
            DownloadError: If the files can't be fetched.
        """


@dataclass(frozen=True)
class Url(Source):
    """Files on a web server.

    Args:
        base: URL prefix of the file names.
        files: Names and digests ("sha256:...", "md5:..."), None if no digest was published.
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
    """A package file, downloaded by the tool of its registry.

    Args:
        tool: "npm", "pip" or "apt-get".
        name: Name of the package.
        version: Version of the package; None for apt-get, which takes the distribution's.
        pattern: Glob pattern of the file name.
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
        # In a temporary folder: what a killed tool leaves behind is not mistaken for the file.
        with tempfile.TemporaryDirectory(dir=folder) as apart:
            done = subprocess.run(
                [*program, *arguments], cwd=apart, capture_output=True, text=True, check=False
            )
            found = sorted(Path(apart).glob(self.pattern))
            if done.returncode or not found:
                lines = done.stderr.strip().splitlines() or ["no file was downloaded"]
                raise DownloadError(f"{self.command}: {lines[-1]}")
            return [found[0].replace(folder / found[0].name)]
