"""LeNet-5, the paper's network for MNIST."""

from __future__ import annotations

import torch
from torch import nn

from tacit._support import checks
from tacit.models.base import Stack


class LeNet5(Stack):
    """LeNet-5 with ReLU for 28 x 28 images.

    Args:
        classes: Number of outputs.
        channels: Channels of the images.

    Examples:
        >>> import torch
        >>> LeNet5()(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, channels: int = 1) -> None:
        classes = checks.positive_integer("LeNet5(classes)", classes)
        channels = checks.positive_integer("LeNet5(channels)", channels)
        super().__init__(
            nn.Conv2d(channels, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )
        # With channels last, a training step on one CPU core takes two thirds of the time.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.arguments = {"classes": classes, "channels": channels}
