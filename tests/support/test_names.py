import pytest
from torch import nn

from tacit._support.names import grow, join, matches


def test_join():
    assert join("block.fc", "weight") == "block.fc.weight"
    assert join("", "weight") == "weight"


def test_grow_adds_modules_where_needed():
    root = nn.Module()
    root.a = nn.Sequential(nn.Linear(2, 2))
    assert grow(root, "") is root
    assert grow(root, "a.0") is root.a[0]
    leaf = grow(root, "a.b.c")
    assert leaf is root.get_submodule("a.b.c")
    assert grow(root, "a.b.c") is leaf
    assert list(root.a[0].parameters())


@pytest.mark.parametrize(
    ("pattern", "parameter", "expected"),
    [
        ("fc", "fc.weight", True),
        ("fc.weight", "fc.weight", True),
        ("fc.*", "fc.weight", True),
        ("*.bias", "block.fc.bias", True),
        ("block", "block.fc.bias", False),
        ("block.*", "block.fc.bias", True),
        ("FC", "fc.weight", False),
        ("", "weight", True),
        ("", "fc.weight", False),
    ],
)
def test_globs_match_parameters_and_their_layers(pattern, parameter, expected):
    assert matches(pattern, parameter) is expected
