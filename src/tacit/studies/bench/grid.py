"""The grid of a comparison: each cell is one method on one problem from one seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import partial
from inspect import signature
from itertools import product
from typing import Any, TypeVar

from tacit._support import checks
from tacit.methods import Method
from tacit.methods.by_name import METHODS
from tacit.scaling import optimizer_kind
from tacit.scaling.parametrization import MaximalUpdate, Parametrization
from tacit.scaling.parametrization import Standard as StandardParametrization
from tacit.studies.bench.problems import PROBLEMS, Problem
from tacit.studies.user_objects import load_object

PARAMETRIZATIONS: dict[str, type[Parametrization]] = {
    "sp": StandardParametrization,
    "mup": MaximalUpdate,
}
"""Parametrizations by their names on the command line and in reports."""


@dataclass(frozen=True)
class Cell:
    """One training run and its evaluation, with every setting that its results depend on.

    Args:
        data: Name of a problem in `PROBLEMS`, or module:name of your own `Problem`.
        method: Name of a method in `METHODS`, or module:name of your own `Method`.
        parametrization: "sp" or "mup".
        seed: Seed of all randomness in training.
        epochs: Passes over the training data.
        lr: Learning rate; by default the problem's learning rate for a plain network.
        batch_size: Examples per step.
        width: Width of the network, for networks with a `width` argument; by default its own.
        train_size: Train on the first N examples; by default on all.
        validation_size: Fit temperatures on the first N validation examples; by default on all.
        test_size: Test on the first N images; by default on all.
        corrupted_size: Test images per corruption, and images per foreign set; by default as
            many as test images.
        samples: Sampled functions per prediction, for methods that sample.
        average: Last part of training over which parameters are averaged; see `tacit.fit`.
        optimizer: Name of the optimizer; see `tacit.fit`.

    Examples:
        >>> cell = Cell("digits", "deep_ensemble", seed=1, epochs=5)
        >>> cell.name, cell.lr  # the problem's learning rate
        ('digits-sp-deep_ensemble-1', 0.02)
    """

    data: str
    method: str
    parametrization: str = "sp"
    seed: int = 0
    epochs: int = 20
    lr: float | None = None
    batch_size: int = 128
    width: int | None = None
    train_size: int | None = None
    validation_size: int | None = None
    test_size: int | None = None
    corrupted_size: int | None = None
    samples: int = 32
    average: float = 0.0
    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        problem, _ = problem_of(self), method_of(self)  # raise if a name is unknown
        self._check_settings()
        if self.width is not None and "width" not in signature(problem.make_net).parameters:
            object.__setattr__(self, "width", None)  # the network takes no width
        if self.lr is None:
            if self.parametrization not in problem.lr:
                raise ValueError(
                    f"lr: {self.data} has no default for {self.parametrization}, only for "
                    f"{', '.join(problem.lr)}; pass lr."
                )
            object.__setattr__(self, "lr", problem.lr[self.parametrization])

    def _check_settings(self) -> None:
        """Check everything that can be checked without importing the named objects."""
        for name in ("data", "method"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name}: expected a name, received {getattr(self, name)!r}.")
        if self.parametrization not in PARAMETRIZATIONS:
            raise ValueError(
                f"parametrization: expected one of {', '.join(PARAMETRIZATIONS)}; received "
                f"{self.parametrization!r}."
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed: expected an integer of at least 0, received {self.seed!r}.")
        for name in ("epochs", "batch_size", "samples"):
            checks.positive_integer(name, getattr(self, name))
        for name in ("width", "train_size", "validation_size", "test_size", "corrupted_size"):
            if getattr(self, name) is not None:
                checks.positive_integer(name, getattr(self, name))
        checks.probability("average", self.average)
        optimizer_kind(self.optimizer)  # raises if the name is unknown
        if self.lr is not None:
            checks.positive_number("lr", self.lr)

    @property
    def name(self) -> str:
        """Name of the file of its result, without suffix."""
        parts = [self.data, self.parametrization, self.method, str(self.seed)]
        return "-".join(parts).replace(":", ".")

    @property
    def network(self) -> str:
        """Name of the folder of plain networks that methods with equal settings share."""
        unused = ("validation_size", "test_size", "corrupted_size")
        shared = {**asdict(self), **dict.fromkeys(unused), "method": "standard", "samples": 1}
        digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()
        return f"{self.data}-{self.parametrization}-{self.seed}-{digest[:12]}".replace(":", ".")

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Cell:
        """Return the cell with the given fields from a file.

        Objects that the file names as `module:name` are not imported.

        Raises:
            ValueError: If a field is unknown, missing or invalid.
        """
        defaults = {field.name: field.default for field in fields(cls)}
        if unknown := sorted(given.keys() - defaults.keys()):
            raise ValueError(f"unknown settings: {', '.join(unknown)}.")
        values = {**defaults, **given}
        if missing := [name for name, value in values.items() if value is MISSING]:
            raise ValueError(f"missing settings: {', '.join(missing)}.")
        cell = object.__new__(cls)
        for name, value in values.items():
            object.__setattr__(cell, name, value)
        cell._check_settings()
        return cell


def check_comparable(cells: Iterable[Cell]) -> None:
    """Raise ValueError unless cells of the same problem differ in method and seed only."""
    known: dict[tuple[str, str], Cell] = {}
    shared = [f.name for f in fields(Cell) if f.name not in ("method", "seed")]
    for cell in cells:
        first = known.setdefault((cell.data, cell.parametrization), cell)
        names = [name for name in shared if getattr(cell, name) != getattr(first, name)]
        if names:
            raise ValueError(
                f"{cell.name} has other settings than the results it would be compared with "
                f"({', '.join(names)}); choose another folder."
            )


def problem_of(cell: Cell) -> Problem:
    """Return the problem that a cell names."""
    return _named("data", cell.data, PROBLEMS, Problem)


def method_of(cell: Cell) -> Method:
    """Return the method that a cell names."""
    return _named("method", cell.method, METHODS, Method)  # type: ignore[type-abstract]


def describe(method: Method) -> str:
    """Return a method with its settings as text, identical in every process."""
    if not is_dataclass(method):
        return repr(method)
    settings = (f"{f.name}={_text(getattr(method, f.name))}" for f in fields(method))
    return f"{type(method).__name__}({', '.join(settings)})"


def _text(value: Any) -> str:
    if isinstance(value, partial):
        keywords = (f"{name}={_text(v)}" for name, v in value.keywords.items())
        return f"{_text(value.func)}({', '.join([*map(_text, value.args), *keywords])})"
    return value.__name__ if callable(value) and hasattr(value, "__name__") else repr(value)


Named = TypeVar("Named")


def _named(option: str, name: str, known: Mapping[str, Named], kind: type[Named]) -> Named:
    if name in known:
        return known[name]
    if ":" not in name:
        raise ValueError(
            f"{option}: expected one of {', '.join(known)}, or module:name; received {name!r}."
        )
    found = load_object(name, option)
    if not isinstance(found, kind):
        hint = "; call it" if isinstance(found, type) else ""
        raise TypeError(f"{option}: expected a {kind.__name__}, {name} is {found!r:.80}{hint}.")
    return found


def make_grid(
    data: Iterable[str],
    methods: Iterable[str] = tuple(METHODS),
    parametrizations: Sequence[str] = ("sp", "mup"),
    seeds: int = 5,
    **settings: Any,
) -> list[Cell]:
    """Return all cells without duplicates, the first seed of every method before the second.

    Args:
        data: Names of problems.
        methods: Names of methods.
        parametrizations: "sp", "mup" or both.
        seeds: Number of seeds.
        **settings: Further fields of `Cell`.

    Examples:
        >>> [cell.name for cell in make_grid(["digits"], ["standard"], ["sp"], seeds=2)]
        ['digits-sp-standard-0', 'digits-sp-standard-1']
    """
    checks.positive_integer("seeds", seeds)
    # Method varies slower than data: the first cells train all plain networks, each once, and
    # later methods reuse them.
    rows = product(range(seeds), methods, data, parametrizations)
    return list(dict.fromkeys(Cell(d, m, p, seed, **settings) for seed, m, d, p in rows))
