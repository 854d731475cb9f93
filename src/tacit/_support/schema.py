"""Rules for data read from JSON: types, limits and known names, checked before use.

A rule is called with the name of a value and the value, and raises ValueError if it doesn't fit.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, get_type_hints

Rule: TypeAlias = Callable[[str, Any], None]
LARGEST = sys.float_info.max


def anything(name: str, value: Any) -> None:
    """Accept any value."""


def text(name: str, value: Any) -> None:
    """Accept a string."""
    if not isinstance(value, str):
        raise _error(name, "a string", value)


def boolean(name: str, value: Any) -> None:
    """Accept true and false."""
    if not isinstance(value, bool):
        raise _error(name, "true or false", value)


def integer(low: int, high: int = 2**53) -> Rule:
    """Return a rule for integers from `low` to `high`; booleans are not integers."""

    def check(name: str, value: Any) -> None:
        if type(value) is not int or not low <= value <= high:
            raise _error(name, f"an integer from {low} to {high}", value)

    return check


def number(low: float = -LARGEST, high: float = LARGEST, *, nan: bool = False) -> Rule:
    """Return a rule for numbers from `low` to `high`, by default all finite floats.

    Args:
        low: Smallest number.
        high: Largest number.
        nan: Whether NaN is also accepted.
    """

    def check(name: str, value: Any) -> None:
        if nan and isinstance(value, float) and math.isnan(value):
            return
        if type(value) not in (int, float) or not low <= value <= high:
            raise _error(name, f"a number from {low:g} to {high:g}", value)

    return check


def one_of(*choices: str) -> Rule:
    """Return a rule for a fixed set of strings."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or value not in choices:
            raise _error(name, f"one of {', '.join(choices)}", value)

    return check


def optional(rule: Rule) -> Rule:
    """Return a rule that also accepts null."""

    def check(name: str, value: Any) -> None:
        if value is not None:
            rule(name, value)

    return check


def word_or(word: str, rule: Rule) -> Rule:
    """Return a rule that also accepts a given word."""

    def check(name: str, value: Any) -> None:
        if value != word:
            rule(name, value)

    return check


def list_of(rule: Rule) -> Rule:
    """Return a rule for lists whose entries fit a rule."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, list):
            raise _error(name, "a list", value)
        for i, entry in enumerate(value):
            rule(f"{name}[{i}]", entry)

    return check


def table_of(rule: Rule) -> Rule:
    """Return a rule for objects with any names, whose values fit a rule."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise _error(name, "an object", value)
        for key, entry in value.items():
            rule(f"{name}[{key!r}]", entry)

    return check


def record(
    fields: Mapping[str, Rule], *, optional: Mapping[str, Rule] | None = None, more: bool = False
) -> Rule:
    """Return a rule for objects with given names.

    Args:
        fields: Rules of the required entries.
        optional: Rules of the optional entries.
        more: Whether other entries are accepted.
    """
    known = {**fields, **(optional or {})}

    def check(name: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise _error(name, "an object", value)
        for key in fields:
            if key not in value:
                raise ValueError(f"{name}: {key!r} is missing.")
        for key, entry in value.items():
            if key in known:
                known[key](f"{name}[{key!r}]", entry)
            elif not more:
                raise _error(name, f"no entries except {', '.join(known)}", key)

    return check


def one_kind_of(kinds: Mapping[str, Rule]) -> Rule:
    """Return a rule for objects whose entry "kind" names the rule that they must fit."""
    known = one_of(*kinds)

    def check(name: str, value: Any) -> None:
        record({"kind": known}, more=True)(name, value)
        kinds[value["kind"]](name, value)

    return check


def dataclass_rule(kind: type, *, tagged: bool = False) -> Rule:
    """Return a rule for the fields of a dataclass; those with a default may be missing.

    Args:
        kind: The dataclass.
        tagged: Whether the object also has an entry "kind".
    """
    rules = {int: integer(-(2**53)), float: number(nan=True), bool: boolean, str: text}
    hints = get_type_hints(kind)
    required: dict[str, Rule] = {"kind": text} if tagged else {}
    others: dict[str, Rule] = {}
    for field in dataclasses.fields(kind):
        group = required if field.default is dataclasses.MISSING else others
        group[field.name] = rules.get(hints[field.name], anything)
    return record(required, optional=others)


def _error(name: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"{name}: expected {expected}, received {reprlib.repr(value)}.")
