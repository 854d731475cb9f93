"""`tacit demo`: compare a plain and a variational network on digits."""

from __future__ import annotations

import argparse
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tacit.studies import demo


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = (
        "Train a plain and a variational network on digits; print a table and write a page."
    )
    parser = commands.add_parser("demo", help=description, description=description)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("tacit-demo.html"),
        help="file of the page (tacit-demo.html)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--epochs", type=int, default=60, help="passes over the training data (60)")
    parser.add_argument("--lr", type=float, default=0.03, help="learning rate (0.03)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (0)")
    parser.set_defaults(command=_show_demo)


def _show_demo(arguments: argparse.Namespace) -> int:
    missing = [name for name in ("sklearn", "PIL", "matplotlib") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"demo requires {', '.join(missing)}: pip install 'tacit-torch[sklearn,data,plots]'"
        )
    demo.main(arguments.out, arguments.epochs, arguments.lr, arguments.seed)
    if arguments.open:
        webbrowser.open(arguments.out.resolve().as_uri())
    return 0
