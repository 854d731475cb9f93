"""All datasets that can be fetched, by name."""

from __future__ import annotations

from tacit.data.cache import Recipe
from tacit.data.cifar import CIFAR10, CIFAR100
from tacit.data.corrupted import CIFAR10_C, CIFAR100_C, MNIST_C, TINY_IMAGENET_C
from tacit.data.mnist_sets import FASHION_MNIST, MNIST, QUICKDRAW
from tacit.data.tiny_imagenet_sets import TINY_IMAGENET
from tacit.data.uci_tables import UCI

SINGLE = (MNIST, FASHION_MNIST, QUICKDRAW, CIFAR10, CIFAR100, TINY_IMAGENET, UCI)
FAMILIES = {
    "mnist_c": MNIST_C,
    "cifar10_c": CIFAR10_C,
    "cifar100_c": CIFAR100_C,
    "tiny_imagenet_c": TINY_IMAGENET_C,
}
CATALOG: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (*SINGLE, *(r for family in FAMILIES.values() for r in family.values()))
}


def recipes(name: str) -> list[Recipe]:
    """Return the recipe of a dataset, or all recipes of a corrupted family ("cifar10_c")."""
    if name in CATALOG:
        return [CATALOG[name]]
    if name in FAMILIES:
        return list(FAMILIES[name].values())
    known = ", ".join([*(recipe.name for recipe in SINGLE), *FAMILIES])
    raise ValueError(f"data: expected one of {known}; received {name!r}.")
