"""Parameters of the corruptions at severities 1 to 5, as in the published sets.

They are the parameters with which CIFAR-10-C and CIFAR-100-C, TinyImageNet-C (Hendrycks and
Dietterich, 2019) and MNIST-C (Mu and Gilmer, 2019) were generated, from their authors'
repositories. Each row holds the arguments that follow the images and the generator in the function
of that name.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["cifar", "tiny_imagenet", "mnist"]
Severities: TypeAlias = tuple[tuple[float, ...], ...]

CIFAR: dict[str, Severities] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3, 32), (0.5, 3, 32), (0.75, 2.5, 32), (1, 2, 32), (1.5, 1.75, 32)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
}

TINY_IMAGENET: dict[str, Severities] = {
    "gaussian_noise": ((0.04,), (0.08,), (0.12,), (0.15,), (0.18,)),
    "shot_noise": ((250,), (100,), (50,), (30,), (15,)),
    "impulse_noise": ((0.01,), (0.02,), (0.05,), (0.08,), (0.14,)),
    "defocus_blur": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    "glass_blur": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    "motion_blur": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    "zoom_blur": CIFAR["zoom_blur"],
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ),
    "frost": ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
    "fog": ((0.4, 3, 64), (0.7, 3, 64), (1, 2.5, 64), (1.5, 2, 64), (2, 1.75, 64)),
    "brightness": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    "contrast": ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    "elastic_transform": (
        (0, 0, 0.08),
        (0.05, 0.3, 0.06),
        (0.1, 0.08, 0.06),
        (0.1, 0.03, 0.03),
        (0.16, 0.03, 0.02),
    ),
    "pixelate": ((0.9,), (0.8,), (0.7,), (0.6,), (0.5,)),
    "jpeg_compression": ((65,), (58,), (50,), (40,), (25,)),
}

MNIST: dict[str, Severities] = {
    "shot_noise": ((60,), (25,), (12,), (5,), (3,)),
    "impulse_noise": ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "shear": ((0.2,), (0.4,), (0.6,), (0.8,), (1.0,)),
    "scale": ((0.9,), (0.8,), (0.7,), (0.6,), (0.5,)),
    "rotate": ((0.2,), (0.4,), (0.6,), (0.8,), (1.0,)),
    "brightness": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    "translate": ((1,), (2,), (3,), (4,), (5,)),
    # The authors define no severities and invert 7 columns on either side.
    "stripe": ((3,), (5,), (7,), (9,), (11,)),
    "fog": ((1.5, 2, 256), (2.0, 2, 256), (2.5, 1.7, 256), (2.5, 1.5, 256), (3.0, 1.4, 256)),
    # The authors have two variants of this effect, which are the same on grey images.
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6),
        (0.65, 0.3, 3, 0.68, 0.6),
        (0.65, 0.3, 2, 0.68, 0.5),
        (0.65, 0.3, 1, 0.65, 1.5),
        (0.67, 0.4, 1, 0.65, 1.5),
    ),
    # The authors define no severities for these three and draw one line.
    "dotted_line": ((1,), (2,), (3,), (4,), (5,)),
    "zigzag": ((1,), (2,), (3,), (4,), (5,)),
    "canny_edges": ((0.2,), (0.4,), (0.6,), (0.8,), (1.0,)),
}

TABLES: dict[Kind, dict[str, Severities]] = {
    "cifar": CIFAR,
    "tiny_imagenet": TINY_IMAGENET,
    "mnist": MNIST,
}

# The severity at which each corruption of MNIST-C was published.
MNIST_PUBLISHED: dict[str, int] = {
    "shot_noise": 5, "impulse_noise": 4, "glass_blur": 1, "motion_blur": 1, "shear": 2, "scale": 3,
    "rotate": 2, "brightness": 5, "translate": 3, "stripe": 3, "fog": 5, "spatter": 4,
    "dotted_line": 1, "zigzag": 1, "canny_edges": 5,
}  # fmt: skip
