"""The command line interface: `tacit` and its commands, one file each."""

from tacit.cli.entry import main

__all__ = ["main"]
