"""The cells of a comparison: a method on a problem from a seed, with all settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from inspect import signature
from itertools import product
from typing import Any, TypeVar

from tacit import _checks
from tacit._load import load
from tacit.bench.problems import PROBLEMS, Problem
from tacit.methods import (
    SWAG,
    DeepEnsemble,
    GeneralizedVI,
    ImplicitBiasVI,
    Laplace,
    MCDropout,
    MeanFieldVI,
    Method,
    Standard,
    TemperatureScaling,
)
from tacit.parametrization import MaximalUpdate, Parametrization
from tacit.parametrization import Standard as StandardParametrization
from tacit.selection import first_and_last

METHODS: dict[str, Method] = {
    "standard": Standard(),
    "temperature_scaling": TemperatureScaling(),
    "laplace_grid": Laplace("grid"),
    "laplace_marglik": Laplace("marglik"),
    "mean_field_vi": MeanFieldVI(samples=1, draws=8),
    "mc_dropout": MCDropout(),
    "swag": SWAG(),
    "deep_ensemble": DeepEnsemble(5),
    "implicit_bias_vi": ImplicitBiasVI(),
    "implicit_bias_vi_paper": ImplicitBiasVI(first_and_last, draws=1),
    "generalized_vi": GeneralizedVI(1.0),
}
"""Methods by the name that the command line and the reports use."""

PARAMETRIZATIONS: dict[str, type[Parametrization]] = {
    "sp": StandardParametrization,
    "mup": MaximalUpdate,
}


@dataclass(frozen=True)
class Cell:
    """One training and its evaluation: everything that its numbers depend on.

    Args:
        data: Name of the problem, in `PROBLEMS`, or module:name of a `Problem` of your own.
        method: Name of the method, in `METHODS`, or module:name of a `Method` of your own.
        parametrization: "sp" or "mup".
        seed: Of everything random in training.
        epochs: Passes over the training data.
        lr: Learning rate; if left out, the problem's for a plain network.
        batch_size: Examples in a step.
        width: Of the network, where it has one; if left out, its own.
        train_size: How many examples to train on, the first; all if left out.
        validation_size: How many to set temperatures by, the first; all if left out.
        test_size: How many test images, the first; all if left out.
        corrupted_size: How many of them with each corruption, and how many foreign images; as many
            as test images if left out.
        samples: Functions in a prediction, where they are drawn.
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

    def __post_init__(self) -> None:
        if self.parametrization not in PARAMETRIZATIONS:
            raise ValueError(
                f"parametrization: expected one of {', '.join(PARAMETRIZATIONS)}; received "
                f"{self.parametrization!r}."
            )
        problem_of(self), method_of(self)  # are they there?
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed: expected an integer of at least 0, received {self.seed!r}.")
        for name in ("epochs", "batch_size", "samples"):
            _checks.positive_integer(name, getattr(self, name))
        for name in ("width", "train_size", "validation_size", "test_size", "corrupted_size"):
            if getattr(self, name) is not None:
                _checks.positive_integer(name, getattr(self, name))
        if (
            self.width is not None
            and "width" not in signature(problem_of(self).make_net).parameters
        ):
            object.__setattr__(self, "width", None)  # these networks have none
        if self.lr is None:
            rates = problem_of(self).lr
            if self.parametrization not in rates:
                raise ValueError(
                    f"lr: {self.data} has none for {self.parametrization}, only for "
                    f"{', '.join(rates)}; give one."
                )
            object.__setattr__(self, "lr", rates[self.parametrization])
        _checks.positive_number("lr", self.lr)

    @property
    def name(self) -> str:
        """Name of its file."""
        parts = [self.data, self.parametrization, self.method, str(self.seed)]
        return "-".join(parts).replace(":", ".")

    @property
    def network(self) -> str:
        """Name of the plain networks that it may share with other methods."""
        unused = ("validation_size", "test_size", "corrupted_size")
        shared = {**asdict(self), **dict.fromkeys(unused), "method": "standard", "samples": 1}
        digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()
        return f"{self.data}-{self.parametrization}-{self.seed}-{digest[:12]}".replace(":", ".")

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Cell:
        """Return a cell from its fields, for instance of a file; unknown ones are an error."""
        if unknown := sorted(given.keys() - {field.name for field in fields(cls)}):
            raise ValueError(f"unknown settings: {', '.join(unknown)}.")
        return cls(**given)


def check_alike(cells: Iterable[Cell]) -> None:
    """Raise ValueError unless cells of the same problem differ in method and seed only."""
    known: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        plain = replace(cell, method="standard", seed=0)
        first = known.setdefault((cell.data, cell.parametrization), plain)
        if plain != first:
            names = [
                f.name for f in fields(Cell) if getattr(plain, f.name) != getattr(first, f.name)
            ]
            raise ValueError(
                f"{cell.name} has other settings than what it would be compared with "
                f"({', '.join(names)}); choose another folder."
            )


def problem_of(cell: Cell) -> Problem:
    """Return the problem that a cell names."""
    return _named("data", cell.data, PROBLEMS, Problem)


def method_of(cell: Cell) -> Method:
    """Return the method that a cell names."""
    return _named("method", cell.method, METHODS, Method)  # type: ignore[type-abstract]


def described(method: Method) -> str:
    """Return a method with its settings, the same text in every process."""
    if not is_dataclass(method):
        return repr(method)
    settings = (f"{f.name}={_text(getattr(method, f.name))}" for f in fields(method))
    return f"{type(method).__name__}({', '.join(settings)})"


def _text(value: Any) -> str:
    if isinstance(value, partial):
        keywords = (f"{name}={_text(v)}" for name, v in value.keywords.items())
        return f"{_text(value.func)}({', '.join([*map(_text, value.args), *keywords])})"
    return value.__name__ if callable(value) and hasattr(value, "__name__") else repr(value)


Thing = TypeVar("Thing")


def _named(option: str, name: str, known: Mapping[str, Thing], kind: type[Thing]) -> Thing:
    if name in known:
        return known[name]
    if ":" not in name:
        raise ValueError(
            f"{option}: expected one of {', '.join(known)}, or module:name; received {name!r}."
        )
    found = load(name, option)
    if not isinstance(found, kind):
        hint = "; call it" if isinstance(found, type) else ""
        raise TypeError(f"{option}: expected a {kind.__name__}, {name} is {found!r:.80}{hint}.")
    return found


def grid(
    data: Iterable[str],
    methods: Iterable[str] = tuple(METHODS),
    parametrizations: Sequence[str] = ("sp", "mup"),
    seeds: int = 5,
    **settings: Any,
) -> list[Cell]:
    """Return all cells, the first seed of everything before the second, each once.

    Args:
        data: Names of problems.
        methods: Names of methods.
        parametrizations: "sp", "mup" or both.
        seeds: How many.
        **settings: Further fields of `Cell`.

    Examples:
        >>> [cell.name for cell in grid(["digits"], ["standard"], ["sp"], seeds=2)]
        ['digits-sp-standard-0', 'digits-sp-standard-1']
    """
    _checks.positive_integer("seeds", seeds)
    # Methods before data: at first one for each network, which the next ones may then share.
    rows = product(range(seeds), methods, data, parametrizations)
    return list(dict.fromkeys(Cell(d, m, p, seed, **settings) for seed, m, d, p in rows))
