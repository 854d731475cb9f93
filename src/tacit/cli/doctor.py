"""`tacit doctor`: check the environment, and a model before a long training run."""

from __future__ import annotations

import argparse
from typing import Any

from rich.markup import escape
from rich.table import Table

from tacit._support.console import print_table
from tacit._support.user_code import call
from tacit.studies.diagnosis import Finding, diagnose, environment
from tacit.studies.user_objects import load_object

COLORS = {"ok": "green", "note": "yellow", "problem": "red"}


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = "Check the environment, and a model's memory, variances and gradient noise."
    parser = commands.add_parser(
        "doctor",
        help=description,
        description=f"{description} The exit code is 3 if a problem is found.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODULE:NAME",
        help="a variational model, or a function that returns one",
    )
    parser.add_argument(
        "--data",
        metavar="MODULE:NAME",
        help="a batch of inputs and targets, or a function that returns one",
    )
    parser.add_argument("--lr", type=float, help="planned learning rate")
    parser.add_argument(
        "--quick", action="store_true", help="skip the trials of torch.compile and of two processes"
    )
    parser.set_defaults(command=_diagnose)


def _diagnose(arguments: argparse.Namespace) -> int:
    findings = list(environment(trials=not arguments.quick))
    if arguments.model is not None:
        data = None if arguments.data is None else _value(arguments.data, "--data")
        findings += diagnose(_value(arguments.model, "MODULE:NAME"), data, lr=arguments.lr)
    elif arguments.data is not None:
        raise ValueError("--data: expected a model (MODULE:NAME) as well.")
    _print(findings)
    return 3 if any(finding.verdict == "problem" for finding in findings) else 0


def _value(target: str, option: str) -> Any:
    found = load_object(target, option)
    is_function = callable(found) and not hasattr(found, "parameters")
    return call(found) if is_function else found


def _print(findings: list[Finding]) -> None:
    table = Table("check", "result", "verdict", "advice")
    for finding in findings:
        color = COLORS[finding.verdict]
        verdict = f"[{color}]{finding.verdict}[/{color}]"
        what, found, advice = map(escape, (finding.what, finding.found, finding.advice))
        table.add_row(what, found, verdict, advice)
    print_table(table)
