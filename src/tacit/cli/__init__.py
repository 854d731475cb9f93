"""The command line: `tacit` and its commands, one file each."""

from tacit.cli.main import main

__all__ = ["main"]
