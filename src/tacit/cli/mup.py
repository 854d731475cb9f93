"""`tacit mup`: test a parametrization on a network of your own."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from tacit._support import files
from tacit._support.user_code import call
from tacit.scaling.parametrization import MaximalUpdate, NeuralTangent, Parametrization, Standard
from tacit.studies.folders import check_folder
from tacit.studies.user_objects import load_object
from tacit.studies.width.coordinates import CoordinateCheck, coordinate_check
from tacit.studies.width.transfer import GRID, LearningRateTransfer, transfer_learning_rate

PARAMETRIZATIONS: dict[str, type[Parametrization]] = {
    "sp": Standard,
    "mup": MaximalUpdate,
    "ntp": NeuralTangent,
}


def add_to(commands: Any) -> None:
    """Add the command and its arguments."""
    description = "Test whether learning rates transfer across widths of your own network."
    parser = commands.add_parser("mup", help=description, description=description)
    kinds = parser.add_subparsers(metavar="check|transfer", required=True)
    _add_check(kinds)
    _add_transfer(kinds)


def _add_check(kinds: Any) -> None:
    check = kinds.add_parser(
        "check",
        help="train a few steps at several widths and compare how far features move",
        description="Train a few steps at several widths and compare how far features move. The "
        "exit code is 3 if the distance depends on the width.",
    )
    check.add_argument(
        "--widths",
        type=_integers,
        default=[64, 128, 256, 512],
        help="comma-separated widths (64,128,256,512)",
    )
    check.add_argument("--lr", type=float, default=0.01, help="learning rate (0.01)")
    check.add_argument("--steps", type=int, default=5, help="training steps (5)")
    check.add_argument("--seeds", type=int, default=3, help="networks per width (3)")
    _add_shared(check, "largest slope of log change over log width that passes")
    check.set_defaults(command=_check)


def _add_transfer(kinds: Any) -> None:
    transfer = kinds.add_parser(
        "transfer",
        help="tune the learning rate of a small network and test it on larger ones",
        description="Tune the learning rate of a small network and test it on larger ones. The "
        "exit code is 3 if it does not transfer.",
    )
    transfer.add_argument("--small", type=int, required=True, help="width to tune at")
    transfer.add_argument(
        "--large", type=_integers, required=True, help="comma-separated widths to transfer to"
    )
    transfer.add_argument(
        "--grid",
        type=_numbers,
        default=GRID,
        help="comma-separated learning rates (powers of 2 from 2^-10 to 1)",
    )
    transfer.add_argument(
        "--validation",
        metavar="MODULE:NAME",
        help="validation data, in the form of --data (the training data)",
    )
    transfer.add_argument("--steps", type=int, default=200, help="training steps (200)")
    transfer.add_argument("--batch-size", type=int, default=64, help="examples per step (64)")
    transfer.add_argument(
        "--seeds", type=int, default=1, help="training runs per width and learning rate (1)"
    )
    _add_shared(transfer, "largest relative excess loss that passes")
    transfer.set_defaults(command=_transfer)


def _add_shared(kind: argparse.ArgumentParser, tolerance: str) -> None:
    """Add the arguments that both kinds of test share; `tolerance` is the help for --tolerance."""
    kind.add_argument(
        "make_net",
        metavar="MODULE:FUNCTION",
        help="function from a width to an initialized network",
    )
    kind.add_argument(
        "--data",
        metavar="MODULE:NAME",
        required=True,
        help="inputs and targets: a pair of tensors, or a function that returns one",
    )
    kind.add_argument(
        "--parametrization",
        metavar="sp|mup|ntp|MODULE:NAME",
        help="parametrization of a plain network (sp); a variational model has its own",
    )
    kind.add_argument(
        "--loss",
        metavar="MODULE:FUNCTION",
        help="function of outputs and targets (cross-entropy or squared error)",
    )
    kind.add_argument("--optimizer", default="sgd", help="sgd, adam, adamw, ... (sgd)")
    kind.add_argument("--tolerance", type=float, default=0.25, help=f"{tolerance} (0.25)")
    kind.add_argument("--out", type=Path, help="folder for the numbers (JSON) and the figure")


def _check(arguments: argparse.Namespace) -> int:
    _prepare(arguments.out)
    found = coordinate_check(
        _make_net(arguments.make_net),
        arguments.widths,
        lr=arguments.lr,
        steps=arguments.steps,
        seeds=arguments.seeds,
        **_shared(arguments),
    )
    return _report(found, found.holds, arguments, "coordinate_check")


def _transfer(arguments: argparse.Namespace) -> int:
    _prepare(arguments.out)
    found = transfer_learning_rate(
        _make_net(arguments.make_net),
        small=arguments.small,
        large=arguments.large,
        grid=arguments.grid,
        validation=_data(arguments.validation, "--validation") if arguments.validation else None,
        steps=arguments.steps,
        batch_size=arguments.batch_size,
        seeds=arguments.seeds,
        **_shared(arguments),
    )
    return _report(found, found.transferred, arguments, "learning_rate_transfer")


def _prepare(out: Path | None) -> None:
    """Check before any training that results can be written."""
    if out is None:
        return
    if find_spec("matplotlib") is None:
        raise ValueError("--out: the figure needs matplotlib: pip install 'tacit-torch[plots]'")
    check_folder("--out", out)
    out.mkdir(parents=True, exist_ok=True)


def _make_net(target: str) -> Callable[[int], nn.Module]:
    function = load_object(target, "MODULE:FUNCTION")
    if not callable(function):
        raise TypeError(f"{target}: expected a function from a width to a network.")
    return partial(call, function)


def _shared(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "data": _data(arguments.data, "--data"),
        "parametrization": _parametrization(arguments.parametrization),
        "loss": load_object(arguments.loss, "--loss") if arguments.loss else None,
        "optimizer": arguments.optimizer,
        "tolerance": arguments.tolerance,
    }


def _report(
    found: CoordinateCheck | LearningRateTransfer,
    passed: bool,
    arguments: argparse.Namespace,
    name: str,
) -> int:
    console = Console(soft_wrap=True, highlight=False)
    console.print(str(found), markup=False)
    if arguments.out is not None:
        numbers, figure = (arguments.out / f"{name}.{suffix}" for suffix in ("json", "png"))
        given = {key: value for key, value in vars(arguments).items() if key != "command"}
        saved = {"arguments": given, **found.to_dict()}
        files.write_bytes(numbers, (json.dumps(saved, indent=1, default=str) + "\n").encode())
        found.plot(figure)
        console.print(f"written: {numbers}, {figure}", markup=False)
    return 0 if passed else 3


def _data(target: str, option: str) -> Any:
    data = load_object(target, option)
    return call(data) if callable(data) else data


def _parametrization(name: str | None) -> Parametrization | None:
    if name is None:
        return None
    if name in PARAMETRIZATIONS:
        return PARAMETRIZATIONS[name]()
    if ":" not in name:
        raise ValueError(
            f"--parametrization: expected sp, mup, ntp or module:name, received {name!r}."
        )
    given = load_object(name, "--parametrization")
    made = call(given) if callable(given) else given
    if not isinstance(made, Parametrization):
        raise TypeError(
            f"--parametrization: expected {name!r} to be a Parametrization, received "
            f"{type(made).__name__}."
        )
    return made


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected comma-separated integers, received {text!r}"
        ) from None


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected comma-separated numbers, received {text!r}"
        ) from None
