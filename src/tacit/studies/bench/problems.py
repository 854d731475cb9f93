"""Problems on which methods are compared: data, a network, and further test sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import models
from tacit.data import (
    CORRUPTIONS,
    Images,
    Splits,
    cifar10,
    cifar100,
    corrupt,
    digits,
    fashion_mnist,
    mnist,
    quickdraw,
    tiny_imagenet,
)
from tacit.data.corruptions import Kind


@dataclass(frozen=True)
class Problem:
    """Data, a network for them, and further test sets.

    Args:
        load: Returns training, validation and test data, each as `tacit.data.Images`.
        make_net: Returns a network; may take a keyword `width`.
        lr: Default learning rates of a plain network, for "sp", "mup" or both.
        kind: Set of corruptions and severities: "mnist", "cifar" or "tiny_imagenet"; None for no
            corrupted test sets.
        foreign: Functions that return foreign images, by name.

    Examples:
        >>> from tacit import models
        >>> problem = Problem(large_digits, models.LeNet5, {"sp": 0.02}, kind="mnist")
        >>> problem.corrupted("fog", problem.load().test[:5]), len(problem.corruptions)
        (Images(5 of 1 x 28 x 28), 15)
    """

    load: Callable[[], Splits]
    make_net: Callable[..., nn.Module]
    lr: Mapping[str, float]
    kind: Kind | None = None
    foreign: Mapping[str, Callable[[], Images]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in CORRUPTIONS:
            raise ValueError(
                f"Problem(kind): expected None or one of {', '.join(CORRUPTIONS)}; received "
                f"{self.kind!r}."
            )

    @property
    def corruptions(self) -> tuple[str, ...]:
        """Names of the corruptions of the test images."""
        return () if self.kind is None else tuple(CORRUPTIONS[self.kind])

    def corrupted(self, name: str, images: Images) -> Images:
        """Return images under a corruption of severity 5, or of MNIST-C's published severity."""
        return replace(images, pixels=corrupt(images.pixels, name, kind=self.kind))


def large_digits() -> Splits:
    """Return scikit-learn's digits, enlarged to 28 x 28 pixels."""
    return Splits(*(_enlarged(*part) for part in digits()))


def _enlarged(x: Tensor, y: Tensor) -> Images:
    pixels = F.interpolate(x.reshape(-1, 1, 8, 8), 28, mode="bilinear")
    return Images((pixels * 255).round().to(torch.uint8), y, (0.3,), (0.35,))


def resnet(classes: int) -> Callable[..., nn.Module]:
    """Return the constructor of the networks for natural images."""
    return partial(models.ResNet18, classes, norm="group")


DIGITS, CLOTHES, DRAWINGS, PHOTOS = (
    {"mnist": lambda: mnist().test},
    {"fashion_mnist": lambda: fashion_mnist().test},
    {"quickdraw": quickdraw},
    {"cifar10": lambda: cifar10().test},
)
LENET = {"sp": 0.02, "mup": 0.05}
RESNET = {"sp": 0.05, "mup": 0.05}
PROBLEMS: dict[str, Problem] = {
    "digits": Problem(large_digits, models.LeNet5, LENET, "mnist"),
    "mnist": Problem(mnist, models.LeNet5, LENET, "mnist", CLOTHES | DRAWINGS),
    "fashion_mnist": Problem(fashion_mnist, models.LeNet5, LENET, "mnist", DIGITS | DRAWINGS),
    "cifar10": Problem(cifar10, resnet(10), RESNET, "cifar"),
    "cifar100": Problem(cifar100, resnet(100), RESNET, "cifar", PHOTOS),
    "tiny_imagenet": Problem(tiny_imagenet, resnet(200), RESNET, "tiny_imagenet"),
}
"""Problems by their names on the command line and in reports."""
