"""`tacit COMMAND`: parses the arguments, calls the command, reports errors in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from tacit._support.user_code import UserCodeError
from tacit.cli import bench, data, demo, doctor, evaluate, mup, predict, reproduce, train
from tacit.training import TrainingDivergedError

COMMANDS = (train, predict, evaluate, demo, doctor, mup, data, bench, reproduce)


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute a command and return its exit code.

    0 means success, 2 invalid arguments, 3 a failed check, a diverged training run or a failure of
    the operating system, and 130 an interrupt. Exceptions from the user's own code propagate, so
    that Python prints the traceback and exits with 1.

    Args:
        arguments: Command-line arguments after `tacit`; `sys.argv[1:]` by default.
    """
    parser = argparse.ArgumentParser(
        prog="tacit", description="Variational deep learning without a regularizer."
    )
    number = version("tacit-torch")
    parser.add_argument("--version", action="version", version=f"tacit {number}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(commands)
    parsed = parser.parse_args(arguments)
    try:
        code: int = parsed.command(parsed)
    except (ValueError, TypeError) as error:
        sys.stderr.write(f"tacit: {error}\n")
        return 2
    except (TrainingDivergedError, OSError) as error:
        sys.stderr.write(f"tacit: {error}\n")
        return 3
    except UserCodeError as failed:
        raise failed.error from None
    except KeyboardInterrupt:
        sys.stderr.write("tacit: interrupted\n")
        return 130
    return code
