import dataclasses
from collections import namedtuple

import torch

from tacit._support.trees import map_tensors, tensors_in, with_tensors

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: torch.Tensor
    label: str
    inner: list


def test_every_kind_of_container_is_traversed_and_rebuilt():
    one, two, three, four = (torch.tensor(float(i)) for i in range(1, 5))
    tree = {"a": [one, Pair(two, None)], "b": Frozen(three, "kept", [four, "also kept"])}
    assert [float(t) for t in tensors_in(tree)] == [1, 2, 3, 4]
    doubled = map_tensors(lambda tensor: 2 * tensor, tree)
    assert [float(t) for t in tensors_in(doubled)] == [2, 4, 6, 8]
    assert isinstance(doubled["a"][1], Pair)
    assert doubled["a"][1].right is None
    assert isinstance(doubled["b"], Frozen)
    assert (doubled["b"].label, doubled["b"].inner[1]) == ("kept", "also kept")
    assert float(tree["b"].value) == 3  # the original is untouched


def test_with_tensors_keeps_the_order():
    tree = (torch.zeros(1), {"x": torch.ones(1)})
    swapped = with_tensors(tree, reversed(tensors_in(tree)))
    assert float(swapped[0]) == 1
    assert float(swapped[1]["x"]) == 0


def test_classes_and_plain_values_hold_no_tensors():
    assert tensors_in([Frozen, int, "text", 3]) == []
