"""`tacit data`: which sets there are, and which are on this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.table import Table

from tacit._support.console import print_table
from tacit.data import cache, catalog


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = "Data to train and to test on: list, fetch, verify, path."
    parser = commands.add_parser("data", help=description, description=description)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, run, text in (
        ("list", _list, "show all sets, and which are on this machine"),
        ("fetch", _fetch, "fetch and decode sets, or all corruptions of one (cifar10_c)"),
        ("verify", _verify, "check the content of sets on this machine"),
        ("path", _path, "print where sets are, there or not"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        if name != "list":
            many = "*" if name == "verify" else "+"
            action.add_argument("names", nargs=many, metavar="NAME", help="of a set")
        action.add_argument(
            "--root", type=Path, help="folder of data ($TACIT_DATA, or tacit in the user's cache)"
        )
        action.set_defaults(run=run)


def _list(arguments: argparse.Namespace) -> int:
    table = Table("name", "what it is", "MB to fetch", "here")
    for recipe in catalog.SINGLE:
        here = "yes" if cache.data_path(recipe, arguments.root).exists() else "no"
        table.add_row(recipe.name, recipe.about, f"{recipe.megabytes:,}", here)
    for name, family in catalog.FAMILIES.items():
        count = sum(cache.data_path(r, arguments.root).exists() for r in family.values())
        megabytes = max(recipe.megabytes for recipe in family.values())
        about = f"corrupted test sets, {len(family)} as published"
        table.add_row(name, about, f"{megabytes:,}", f"{count} of {len(family)}")
    print_table(table)
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    return max([_fetched(recipe, arguments.root) for recipe in _chosen(arguments.names)])


def _fetched(recipe: cache.Recipe, root: Path | None) -> int:
    try:
        sys.stdout.write(f"{recipe.name}: {cache.fetch(recipe, root)}\n")
    except (cache.DataMissingError, ModuleNotFoundError, OSError) as error:
        sys.stderr.write(f"tacit: {error}\n")
        return 3
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    chosen = _chosen(arguments.names)
    if not arguments.names:
        every = catalog.CATALOG.values()
        chosen = [r for r in every if cache.data_path(r, arguments.root).exists()]
    problems = {recipe.name: _problem(recipe, arguments.root) for recipe in chosen}
    for name, problem in problems.items():
        sys.stdout.write(f"{name}: {problem or 'as it should be'}\n")
    return 3 if any(problems.values()) else 0


def _problem(recipe: cache.Recipe, root: Path | None) -> str | None:
    try:
        cache.verify(recipe, root)
    except ValueError as error:
        return str(error)
    return None


def _path(arguments: argparse.Namespace) -> int:
    for recipe in _chosen(arguments.names):
        sys.stdout.write(f"{cache.data_path(recipe, arguments.root)}\n")
    return 0


def _chosen(names: list[str]) -> list[cache.Recipe]:
    return [recipe for name in names for recipe in catalog.recipes(name)]
