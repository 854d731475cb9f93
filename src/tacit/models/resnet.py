"""Residual networks, with torchvision's parameter names and arithmetic."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from torch import Tensor, nn

from tacit._support import checks
from tacit.models.base import Rebuildable
from tacit.models.pretrained import Loaded, load_pretrained

Norm: TypeAlias = Literal["group", "batch"]
Stem: TypeAlias = Literal["small", "imagenet"]
GROUPS = 32  # default of group norm (Wu and He, 2018); fewer if it doesn't divide the channels


class ResNet(Rebuildable):
    """Base class of the residual networks (He et al., 2016).

    Parameters have torchvision's names, so its weights load. With the ImageNet stem and batch norm,
    the network is the same function as torchvision's.

    Args:
        classes: Number of outputs.
        channels: Channels of the images.
        stem: "small" for 32 x 32 and 64 x 64 images: a 3 x 3 convolution with stride 1 and no
            pooling, as in the paper; "imagenet": 7 x 7 with stride 2 and pooling.
        norm: "group" or "batch" normalisation.
        width: Channels of the first stage.
        pretrained: Initial weights: "imagenet" for torchvision's, which must be installed, or a
            file (safetensors, or a state dict saved by torch). The first and last layers keep their
            initialization if their shapes differ: with the small stem, and with another number of
            classes.

    Examples:
        >>> import tacit, torch
        >>> net = tacit.models.ResNet18(classes=7, channels=1, width=8)
        >>> net(torch.randn(2, 1, 32, 32)).shape
        torch.Size([2, 7])
        >>> net.conv1.stride, tacit.models.ResNet18(stem="imagenet", norm="batch").conv1.stride
        ((1, 1), (2, 2))
    """

    block: ClassVar[type[BasicBlock | Bottleneck]]
    depths: ClassVar[tuple[int, int, int, int]]
    """Blocks in each of the four stages."""
    loaded: Loaded | None = None
    """Which tensors came from `pretrained`; None without it."""

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        *,
        stem: Stem = "small",
        norm: Norm = "group",
        width: int = 64,
        pretrained: str | Path | None = None,
    ) -> None:
        super().__init__()
        classes = checks.positive_integer("classes", classes)
        channels = checks.positive_integer("channels", channels)
        width = checks.positive_integer("width", width)
        if stem not in ("small", "imagenet"):
            raise ValueError(f"stem: expected small or imagenet, received {stem!r}.")
        self.arguments = {
            "classes": classes, "channels": channels, "stem": stem, "norm": norm, "width": width,
        }  # fmt: skip
        normed = partial(make_norm, norm)
        if stem == "small":
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            self.maxpool: nn.Module = nn.Identity()
        else:
            self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.bn1 = normed(width)
        self.relu = nn.ReLU()
        inputs = width
        for i, depth in enumerate(self.depths):
            planes, blocks = width * 2**i, []
            for j in range(depth):
                blocks.append(self.block(inputs, planes, 2 if i and not j else 1, normed))
                inputs = planes * self.block.expansion
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            # On the meta device a normal draw imports 800 modules, which takes seconds.
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if pretrained is not None:
            name = type(self).__name__.lower()
            self.loaded = load_pretrained(self, pretrained, name, first="conv1", last="fc")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images, (B, C, H, W) to (B, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, norm: Any) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, padding=1, bias=False)
        self.bn1 = norm(planes)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = norm(planes)
        self.downsample = way_around(inputs, planes, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Return features, (B, C, H, W)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        found: Tensor = self.relu(out + (x if self.downsample is None else self.downsample(x)))
        return found


class Bottleneck(nn.Module):
    """A 3 x 3 convolution between two 1 x 1, with a shortcut; the 3 x 3 has the stride."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int, norm: Any) -> None:
        super().__init__()
        outputs = planes * self.expansion
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = norm(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, padding=1, bias=False)
        self.bn2 = norm(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = norm(outputs)
        self.relu = nn.ReLU()
        self.downsample = way_around(inputs, outputs, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Return features, (B, C, H, W)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        found: Tensor = self.relu(out + (x if self.downsample is None else self.downsample(x)))
        return found


def way_around(inputs: int, outputs: int, stride: int, norm: Any) -> nn.Sequential | None:
    """Return a projection shortcut (1 x 1 convolution and norm) if the shape changes, else None."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))


def make_norm(norm: Norm, channels: int) -> nn.Module:
    """Return a normalisation layer."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(math.gcd(GROUPS, channels), channels)
    raise ValueError(f"norm: expected group or batch, received {norm!r}.")


class ResNet18(ResNet):
    """ResNet-18; the arguments are those of `ResNet`.

    Examples:
        >>> import torch
        >>> ResNet18(width=8)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    block = BasicBlock
    depths = (2, 2, 2, 2)


class ResNet34(ResNet):
    """ResNet-34, the paper's network for CIFAR and TinyImageNet; arguments as for `ResNet`.

    Examples:
        >>> import torch
        >>> ResNet34(classes=200, width=8)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 200])
    """

    block = BasicBlock
    depths = (3, 4, 6, 3)


class ResNet50(ResNet):
    """ResNet-50; the arguments are those of `ResNet`.

    Examples:
        >>> import torch
        >>> ResNet50(width=8)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    block = Bottleneck
    depths = (3, 4, 6, 3)
