import math
from dataclasses import dataclass

import pytest

from tacit._support import schema


@dataclass
class Settings:
    rank: int
    scale: float = 1.0


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (schema.text, ["", "a"], [None, 1, ["a"]]),
        (schema.boolean, [True, False], [0, 1, None, "true"]),
        (schema.integer(1, 5), [1, 5], [0, 6, True, 1.0, "1", None, 10**400]),
        (schema.number(0, 1), [0, 1, 0.5], [-1, 1.5, True, "0", None, math.nan, math.inf, 10**400]),
        (schema.number(nan=True), [math.nan, 1e300, -1], [math.inf, 10**400, "nan"]),
        (schema.one_of("a", "b"), ["a"], ["c", "", None, ["a"], {}]),
        (schema.optional(schema.text), [None, "a"], [1]),
        (schema.list_of(schema.text), [[], ["a"]], [None, "a", {}, [1], ["a", None]]),
        (schema.table_of(schema.text), [{}, {"x": "a"}], [None, [], {"x": 1}]),
        (
            schema.record({"a": schema.text}, optional={"b": schema.text}),
            [{"a": ""}, {"a": "", "b": ""}],
            [{}, [], None, {"b": ""}, {"a": 1}, {"a": "", "b": 1}, {"a": "", "c": ""}],
        ),
        (schema.record({"a": schema.text}, more=True), [{"a": "", "c": 1}], [{"c": 1}]),
        (
            schema.one_kind_of({"x": schema.record({"kind": schema.text, "a": schema.text})}),
            [{"kind": "x", "a": ""}],
            [{"kind": "y", "a": ""}, {"kind": "x"}, {"a": ""}, {"kind": ["x"]}, "x", None],
        ),
        (
            schema.dataclass_rule(Settings),
            [{"rank": 1}, {"rank": 1, "scale": 2}],
            [{}, {"scale": 1.0}, {"rank": 1.0}, {"rank": 1, "scale": "2"}, {"rank": 1, "x": 1}],
        ),
        (schema.dataclass_rule(Settings, tagged=True), [{"kind": "s", "rank": 1}], [{"rank": 1}]),
    ],
)
def test_rules(rule, good, bad):
    for value in good:
        rule("name", value)
    for value in bad:
        with pytest.raises(ValueError, match=r"name.*: (expected .*, received|'\w+' is missing)"):
            rule("name", value)


def test_errors_name_the_entry_and_shorten_what_was_received():
    rule = schema.record({"a": schema.list_of(schema.table_of(schema.integer(0, 9)))})
    with pytest.raises(ValueError, match="received 'y") as caught:
        rule("header", {"a": [{}, {"x": "y" * 10_000}]})
    message = str(caught.value)
    assert message.startswith("header['a'][1]['x']: expected an integer from 0 to 9, received 'yyy")
    assert len(message) < 120
