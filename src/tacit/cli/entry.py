"""`tacit COMMAND`: reads the arguments, runs the command, and says errors in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from tacit._support.user_code import UserCodeError
from tacit.cli import bench, data, demo, doctor, mup, reproduce

COMMANDS = (demo, doctor, mup, data, bench, reproduce)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 for wrong arguments, 3 if a check fails.

    1 is Python's own code for a crash, for instance in the code of the user's network.

    Args:
        arguments: What follows `tacit`; those of the process if left out.
    """
    parser = argparse.ArgumentParser(
        prog="tacit", description="Deep networks that know what they don't know."
    )
    number = version("tacit-torch")
    parser.add_argument("--version", action="version", version=f"tacit {number}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    parsed = parser.parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except (ValueError, TypeError) as error:
        sys.stderr.write(f"tacit: {error}\n")
        return 2
    except ChildProcessError as error:
        sys.stderr.write(f"tacit: {error}\n")
        return 3
    except UserCodeError as failed:
        raise failed.error from None
    except KeyboardInterrupt:
        sys.stderr.write("tacit: interrupted\n")
        return 130
    return code
