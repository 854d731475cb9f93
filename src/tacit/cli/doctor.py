"""`tacit doctor`: is the environment in order, and a model, before it is trained for hours?"""

from __future__ import annotations

import argparse
from typing import Any

from rich.table import Table

from tacit._support.console import print_table
from tacit._support.user_code import call, load
from tacit.studies.diagnosis import Finding, diagnose, environment

COLORS = {"ok": "green", "note": "yellow", "problem": "red"}


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = "Look at the environment, and at a model: memory, variances, gradient noise."
    parser = commands.add_parser(
        "doctor",
        help=description,
        description=f"{description} The exit code is 3 if there is a problem.",
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODULE:NAME", help="a variational model, or a function for one"
    )
    parser.add_argument("--data", metavar="MODULE:NAME", help="a batch of inputs and targets")
    parser.add_argument("--lr", type=float, help="the learning rate that is planned")
    parser.add_argument("--quick", action="store_true", help="don't try out compile and processes")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    findings = list(environment(trials=not arguments.quick))
    if arguments.model is not None:
        data = None if arguments.data is None else _value(arguments.data, "--data")
        findings += diagnose(_value(arguments.model, "MODULE:NAME"), data, lr=arguments.lr)
    elif arguments.data is not None:
        raise ValueError("--data goes with a model.")
    _print(findings)
    return 3 if any(finding.verdict == "problem" for finding in findings) else 0


def _value(target: str, option: str) -> Any:
    found = load(target, option)
    is_function = callable(found) and not hasattr(found, "parameters")
    return call(found) if is_function else found


def _print(findings: list[Finding]) -> None:
    table = Table("what", "found", "verdict", "advice")
    for finding in findings:
        color = COLORS[finding.verdict]
        verdict = f"[{color}]{finding.verdict}[/{color}]"
        table.add_row(finding.what, finding.found, verdict, finding.advice)
    print_table(table)
