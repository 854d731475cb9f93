"""`tacit data`: list, fetch, verify and locate datasets."""

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
    description = "List, fetch, verify and locate datasets."
    parser = commands.add_parser("data", help=description, description=description)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, command, text in (
        ("list", _list, "list all datasets, and which are on this machine"),
        ("fetch", _fetch, "fetch and decode datasets, or all corruptions of a family (cifar10_c)"),
        ("verify", _verify, "verify the content of datasets, by default of all on this machine"),
        ("path", _path, "print the paths of datasets, whether they exist or not"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        if name != "list":
            count = "*" if name == "verify" else "+"
            action.add_argument("names", nargs=count, metavar="NAME", help="name of a dataset")
        action.add_argument(
            "--root", type=Path, help="data folder ($TACIT_DATA, or tacit in the user's cache)"
        )
        action.set_defaults(command=command)


def _list(arguments: argparse.Namespace) -> int:
    table = Table("name", "description", "download, MB", "on this machine")
    for recipe in catalog.SINGLE:
        present = "yes" if cache.data_path(recipe, arguments.root).exists() else "no"
        table.add_row(recipe.name, recipe.about, f"{recipe.megabytes:,}", present)
    for name, family in catalog.FAMILIES.items():
        count = sum(cache.data_path(r, arguments.root).exists() for r in family.values())
        megabytes = max(recipe.megabytes for recipe in family.values())
        about = f"published corrupted test sets, {len(family)} corruptions"
        table.add_row(name, about, f"{megabytes:,}", f"{count} of {len(family)}")
    print_table(table)
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    return max([_fetch_one(recipe, arguments.root) for recipe in _chosen(arguments.names)])


def _fetch_one(recipe: cache.Recipe, root: Path | None) -> int:
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
        sys.stdout.write(f"{name}: {problem or 'ok'}\n")
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
